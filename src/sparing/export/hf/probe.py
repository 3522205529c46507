"""Loads an exported folder as its users will, without this package, and notes what it answers.

Run as a program of its own: python -P probe.py FOLDER ASKED ANSWERS
"""

import sys
from typing import Any


def answer(folder: str, asked: str, answers: str) -> None:
    """Read tokens and a text from the file `asked`; write logits and ids to `answers`."""
    sys.modules["sparing"] = None  # type: ignore[assignment]  # makes an import of it fail
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    given = load_file(asked)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    text = bytes(given["text"].tolist()).decode("utf-8", "surrogateescape")
    ids_T = torch.tensor(tokenizer(text)["input_ids"], dtype=torch.int64)
    cache, pieces = None, []
    with torch.no_grad():
        whole_TV = model(given["tokens"]).logits[0]
        for piece_1T in torch.split(given["tokens"], given["pieces"].tolist(), dim=1):
            out = model(piece_1T, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            pieces.append(out.logits[0])
    save_file({"whole": whole_TV, "carried": torch.cat(pieces), "ids": ids_T}, answers)


if __name__ == "__main__":
    answer(*sys.argv[1:])
