"""The files of an exported folder: weights, settings, vocabulary and code."""

import inspect
import json
import shutil
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file

from sparing.config import to_json
from sparing.data.vocab import Vocab
from sparing.export.hf.flatten import flatten_modules
from sparing.files import to_os_error
from sparing.models.api import LanguageModel

REMOTE = "sparing.export.hf.remote"
ROOTS = {
    f"{REMOTE}.modeling": "modeling_sparing",
    f"{REMOTE}.tokenization": "tokenization_sparing",
    f"{REMOTE}.family": "sparing_family",
}
LONGEST = 1 << 16
"""No limit of the model: programs that cut a text into windows cut it after so many tokens."""


def write_folder(folder: Path, model: LanguageModel, vocab: Vocab, *, segment: int) -> None:
    """Write everything but the model card.

    The model must be collapsed, so that its config describes the weights it has. `segment` is the
    number of tokens that it reads at a time.
    """
    for name, source in _sources(model).items():
        (folder / f"{name}.py").write_text(source, encoding="utf-8")
    weights = {f"model.{name}": weight.contiguous() for name, weight in _stored(model).items()}
    path = folder / "model.safetensors"
    try:
        save_file(weights, path, metadata={"format": "pt"})
    except SafetensorError as problem:
        raise to_os_error(problem, path) from None
    # safetensors makes files private, whatever the user's umask is.
    shutil.copymode(folder / "modeling_sparing.py", path)
    tied = len(weights) < len(model.state_dict())
    settings = to_json(model.config)
    _write(folder / "config.json", _config(settings, vocab, segment=segment, tied=tied))
    # No padding token: `generate` would take it for padding wherever it occurs in a prompt.
    _write(folder / "generation_config.json", {"bos_token_id": vocab.start})
    _write(folder / "tokenizer_config.json", TOKENIZER)
    _write(folder / "sparing_vocab.json", vocab.to_json())


def _config(settings: dict[str, Any], vocab: Vocab, *, segment: int, tied: bool) -> dict[str, Any]:
    return {
        "model_type": "sparing",
        "architectures": ["SparingForCausalLM"],
        "auto_map": {
            "AutoConfig": "modeling_sparing.SparingConfig",
            "AutoModelForCausalLM": "modeling_sparing.SparingForCausalLM",
        },
        "dtype": "float32",
        "vocab_size": vocab.size,
        "bos_token_id": vocab.start,
        "eos_token_id": None,
        "max_position_embeddings": LONGEST,
        "tie_word_embeddings": tied,
        "segment": segment,
        "settings": settings,
    }


TOKENIZER = {
    "tokenizer_class": "SparingTokenizer",
    "auto_map": {"AutoTokenizer": ["tokenization_sparing.SparingTokenizer", None]},
    "padding_side": "left",
    "clean_up_tokenization_spaces": False,
}


def _stored(model: LanguageModel) -> dict[str, Any]:
    """The weights and buffers, those with two names only under the first."""
    first: dict[int, str] = {}
    # The tensors themselves: copies, as `state_dict` has them, would not show which are the same.
    tensors = model.state_dict(keep_vars=True)
    kept = [name for name, x in tensors.items() if first.setdefault(id(x), name) == name]
    return {name: tensors[name].detach().float() for name in kept}


def _sources(model: LanguageModel) -> dict[str, str]:
    """The code that the folder needs, by file name without suffix."""
    return flatten_modules(ROOTS, {f"{REMOTE}.family": _family_source(model)})


def _family_source(model: LanguageModel) -> str:
    """The source of `remote/family.py` for the family of `model`."""
    kinds = {"FamilyConfig": type(model.config), "FamilyModel": type(model)}
    lines = [f"from {kind.__module__} import {kind.__name__} as {n}" for n, kind in kinds.items()]
    return "\n".join([f'"""{inspect.getdoc(type(model))}"""', *lines, ""])


def _write(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
