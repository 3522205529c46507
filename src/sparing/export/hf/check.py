"""Compares an exported folder, loaded without this package, with the model it was made from."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from sparing.data.vocab import ONE_BYTE, Vocab
from sparing.errors import UserError
from sparing.export.hf import probe
from sparing.models.api import LanguageModel, Output

TOLERANCE = 1e-5
"""Largest difference of logits, as a share of the largest logit where that is above 1."""
PIECES = (29, 1, 1, 97, 1, 171)
"""Lengths in which the tokens are read, the state carried from one to the next."""


def check_folder(folder: Path, model: LanguageModel, vocab: Vocab, *, segment: int) -> float:
    """Return the largest difference of logits; refuse a folder that answers differently."""
    draw = torch.Generator().manual_seed(0)
    tokens_1T = torch.randint(vocab.size, (1, sum(PIECES)), generator=draw)
    text = _text(vocab, tokens_1T[0].tolist())
    ids_T = torch.from_numpy(vocab.encode(text).astype("int64"))
    asked = {"tokens": tokens_1T, "pieces": torch.tensor(PIECES), "text": torch.tensor([*text])}
    found = _ask(folder, asked)
    if not torch.equal(found["ids"], ids_T):
        raise UserError("the exported tokenizer encodes a text differently; nothing was written")
    whole_TV = _logits(model, tokens_1T, [tokens_1T.size(1)], segment)
    carried_TV = _logits(model, tokens_1T, PIECES, segment)
    differences = torch.cat([found["whole"] - whole_TV, found["carried"] - carried_TV])
    difference = float(differences.abs().max())
    # Written so that a NaN, which is the largest of all, is refused too.
    if not difference <= TOLERANCE * max(1.0, float(whole_TV.abs().max())):
        raise UserError(
            f"the exported logits differ by up to {difference:.2g}; nothing was written"
        )
    return difference


def _ask(folder: Path, asked: dict[str, Tensor]) -> dict[str, Tensor]:
    """The answers of the folder's own code in a process of its own."""
    with tempfile.TemporaryDirectory() as scratch:
        given, answers = Path(scratch) / "asked", Path(scratch) / "answers"
        save_file(asked, given)
        done = subprocess.run(
            [sys.executable, "-P", probe.__file__, folder, given, answers],
            capture_output=True,
            text=True,
            # Nothing is looked up, and no copy of the code stays in the user's cache.
            env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": scratch},
        )
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise UserError(f"Transformers cannot load the exported folder: {reason}")
        return load_file(answers)


@torch.no_grad()
def _logits(
    model: LanguageModel, tokens_1T: Tensor, lengths: Sequence[int], segment: int
) -> Tensor:
    """The model's own logits, read in pieces of these lengths and at most `segment` at a time."""
    state, rows = model.initial_state(1, inference=True), []
    for piece_1T in torch.split(tokens_1T, list(lengths), dim=1):
        for part_1T in torch.split(piece_1T, segment, dim=1):
            out: Output = model(part_1T, state)
            state = out.state
            rows.append(model.head.logits(out.hidden_BTD[0]))
    return torch.cat(rows)


def _text(vocab: Vocab, ids: Sequence[int]) -> bytes:
    """A text for the tokenizer; where a token is a byte, any bytes will do."""
    text = vocab.decode(ids)
    return text if vocab.kind in ONE_BYTE else text.decode("utf-8", "ignore").encode()
