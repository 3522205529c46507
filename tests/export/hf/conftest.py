"""Tiny models, as they are and as Transformers loads their exports."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.models.tiny import VOCAB, tiny

from sparing.data.vocab import SymbolVocab, Vocab
from sparing.export.hf.folder import write_folder
from sparing.models.api import LanguageModel

LETTERS: Vocab = SymbolVocab(b"\nabcdefghij"[:VOCAB])
SEGMENT = 7
Export = Callable[[str], tuple[LanguageModel, Any]]


@pytest.fixture(scope="session")
def export(tmp_path_factory: pytest.TempPathFactory) -> Export:
    """Export a tiny model; return it as it was, and as Transformers loads it."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()

    @functools.cache
    def exported(name: str) -> tuple[LanguageModel, Any]:
        folder = tmp_path_factory.mktemp("exported")
        own, collapsed = tiny(name).float(), tiny(name).float()
        collapsed.collapse()
        write_folder(folder, collapsed, LETTERS, segment=SEGMENT)
        return own, AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)

    return exported


@pytest.fixture(name="tokens_BT")
def tokens() -> torch.Tensor:
    return torch.randint(VOCAB, (3, 25), generator=torch.Generator().manual_seed(1))
