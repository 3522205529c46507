"""The files of an exported folder: two graphs, their weights, and the records of the run."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from sparing import __version__
from sparing.errors import UserError
from sparing.export.onnx.graph import GraphOptions
from sparing.export.trained import Trained
from sparing.files import write_json
from sparing.models.onnx_runtime import (
    FORMAT,
    MANIFEST,
    WEIGHTS,
    Carried,
    ExportManifest,
    file_sha256,
)

RUNNER, SOURCE = "run.py", Path(__file__).with_name("runner.py")
SMALL = 1024
"""Tensors of fewer bytes stay inside the graphs."""
ALIGNMENT = 4096
"""Where a tensor may begin in the file of weights, so that it can be mapped into memory."""


def write_graphs(
    folder: Path,
    graphs: Mapping[str, Any],
    trained: Trained,
    state: Mapping[str, Tensor],
    options: GraphOptions,
) -> None:
    """Write everything but the model card. `graphs` are `onnx.ModelProto` by file name.

    `state` is that before the first token.
    """
    chunk, carried = options.chunk, [_carried(name, tensor) for name, tensor in state.items()]
    facts = _facts(trained, carried, chunk)
    with open(folder / WEIGHTS, "wb") as file:
        shared = SharedWeights(file)
        for proto in graphs.values():
            shared.move(proto.graph.initializer)
    for name, proto in graphs.items():
        for key, value in facts.items():
            proto.metadata_props.add(key=key, value=value)
        (folder / name).write_bytes(proto.SerializeToString())
    shutil.copyfile(SOURCE, folder / RUNNER)
    settings = {**trained.settings, "evaluate": {**trained.settings["evaluate"], "segment": chunk}}
    records = {**trained.records, "vocab": trained.vocab.to_json(), "config": settings}
    for name, content in records.items():
        write_json(folder / f"{name}.json", content)
    needed = (*graphs, WEIGHTS, "vocab.json", "config.json")
    manifest: ExportManifest = {
        "format": FORMAT,
        "weights": options.weights,
        "checkpoint": trained.checkpoint,
        "step": trained.step,
        "chunk": chunk,
        "state": carried,
        "sha256": {name: file_sha256(folder / name) for name in needed},
    }
    write_json(folder / MANIFEST, manifest)


class SharedWeights:
    """A file that holds the large tensors of several graphs, equal ones once."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._places: dict[bytes, int] = {}

    def move(self, tensors: Sequence[Any]) -> None:
        """Move tensors (`onnx.TensorProto`) from their graph to the file."""
        for tensor in tensors:
            content = bytes(tensor.raw_data)
            if len(content) < SMALL:
                continue
            start = self._places.get(content)
            if start is None:
                start = self._append(content)
                self._places[content] = start
            tensor.ClearField("raw_data")
            tensor.data_location = type(tensor).EXTERNAL
            place = {"location": WEIGHTS, "offset": start, "length": len(content)}
            for key, value in place.items():
                tensor.external_data.add(key=key, value=str(value))

    def _append(self, content: bytes) -> int:
        end = self._file.tell()
        start = -(-end // ALIGNMENT) * ALIGNMENT
        self._file.write(bytes(start - end) + content)
        return start


def _facts(trained: Trained, carried: Sequence[Carried], chunk: int) -> dict[str, str]:
    """What a program that has only a graph needs to know, as the graph's metadata."""
    vocab = trained.vocab
    facts = {
        "sparing": __version__,
        "settings": {name: trained.settings[name] for name in ("recipe", "family", "model")},
        "vocabulary": vocab.to_json(),
        # In Latin-1 every byte is a character.
        "tokens": [vocab.token_bytes(id).decode("latin-1") for id in range(vocab.size)],
        "start": vocab.start,
        "state": carried,
        "chunk": chunk,
    }
    return {name: json.dumps(fact) for name, fact in facts.items()}


def _carried(name: str, tensor: Tensor) -> Carried:
    first = int(tensor.flatten()[0])
    if tensor.dtype not in (torch.float32, torch.int64) or not bool((tensor == first).all()):
        raise UserError(f"the state {name} of this model cannot be exported")
    dtype: Any = str(tensor.dtype).removeprefix("torch.")
    return {"name": name, "shape": list(tensor.shape[1:]), "dtype": dtype, "first": first}
