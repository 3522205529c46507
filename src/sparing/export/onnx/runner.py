"""Continues a text with the model in this folder: python run.py PROMPT [TOKENS [TEMPERATURE]]"""

import base64
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
from onnxruntime import InferenceSession, OrtValue

GRAPHS = [InferenceSession(Path(__file__).with_name(f"{n}.onnx")) for n in ("chunk", "step")]
FACTS = {n: json.loads(fact) for n, fact in GRAPHS[0].get_modelmeta().custom_metadata_map.items()}
TOKENS, VOCAB = [token.encode("latin-1") for token in FACTS["tokens"]], FACTS["vocabulary"]
UNITS = {"words": rb"\n|\S+", "characters": rb"[\x00-\x7f]|[\xc0-\xff][\x80-\xbf]+"}
STATE: dict[str, tuple[OrtValue, OrtValue]] = {}
for each in FACTS["state"]:
    arrays = [np.full((1, *each["shape"]), each["first"], each["dtype"]) for _ in range(2)]
    before, after = (OrtValue.ortvalue_from_numpy(array) for array in arrays)
    # Memories are changed where they are; the rest is written to one place and read from the other.
    STATE[each["name"]] = before, before if "ring." in each["name"] else after


def feed(ids: list[int]) -> Any:
    """Return the logits of the token after `ids`, which follow the tokens of earlier calls."""
    for graph in GRAPHS:
        while len(ids) >= (count := graph.get_inputs()[0].shape[1]):
            binding = graph.io_binding()
            binding.bind_output("logits")
            binding.bind_cpu_input("tokens", np.array([ids[:count]]))
            for name, (before, after) in STATE.items():
                binding.bind_ortvalue_input(f"in.{name}", before)
                binding.bind_ortvalue_output(f"out.{name}", after)
                STATE[name] = after, before
            graph.run_with_iobinding(binding)
            logits, ids = binding.get_outputs()[0].numpy()[0, -1], ids[count:]
    return logits


def tokenize(text: bytes) -> list[int]:
    """Return the tokens of a text."""
    if "model" in VOCAB:
        from sentencepiece import SentencePieceProcessor

        pieces = SentencePieceProcessor(model_proto=base64.b64decode(VOCAB["model"]))
        # PAR's pieces have none for a line end.
        lines = text.split(b"\n") if VOCAB["kind"] == "par-pieces" else [text]
        return [id for line in lines for id in pieces.encode(line.decode())]
    ids, unit = {token: id for id, token in enumerate(TOKENS)}, UNITS.get(VOCAB["kind"], b"(?s).")
    # A word has the space after it; of symbols that were never seen, only words have a token.
    names = ((x, x + b" ", b"<unk> ") for x in re.findall(unit, text))
    return [ids[next((x for x in each if x in ids), each[0])] for each in names]


if __name__ == "__main__":
    words = (*sys.argv[1:], *("", "200", "0")[len(sys.argv) - 1 :])
    prompt, length, temperature = map(os.fsencode, words)
    ids, draw = [FACTS["start"], *tokenize(prompt)], np.random.default_rng()
    space = b" " if prompt[-1:].strip() and TOKENS[ids[-1]].endswith(b" ") else b""
    sys.stdout.buffer.write(prompt + space)
    for _ in range(int(length)):
        ids = [int((feed(ids) + float(temperature) * draw.gumbel(size=len(TOKENS))).argmax())]
        sys.stdout.buffer.write(TOKENS[ids[0]])
