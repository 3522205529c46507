"""A model in the form of ONNX graphs, run by ONNX Runtime on the CPU.

Its `forward` returns logits in place of hidden vectors: the last layer is inside the graphs.
Axes: B batch, T segment, V vocabulary, X any.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor

from sparing.documents import Count, read_document
from sparing.errors import UserError
from sparing.inputs import open_regular
from sparing.models.api import LanguageModel, Output, State
from sparing.nn.ring import PREFIX, is_ring
from sparing.units import IGNORE_INDEX

MANIFEST = "onnx.json"
"""The file that makes a folder an export."""
STEP, CHUNK, WEIGHTS = "step.onnx", "chunk.onnx", "weights.bin"
KEPT = "kept."
"""In names, in place of the prefix of rings: a memory that is copied before it is written."""
FORMAT = 1
Weights = Literal["float32", "int8"]


class Carried(TypedDict):
    """One tensor of the state."""

    name: str
    shape: list[Count]
    """Without the lane axis, which comes first."""
    dtype: Literal["float32", "int64"]
    first: int
    """The number that fills it before the first token."""


class ExportManifest(TypedDict):
    """The content of `onnx.json`."""

    format: int
    weights: Weights
    """Precision of the matrices."""
    checkpoint: str
    step: Count
    """Of the training, when that checkpoint was written."""
    chunk: Count
    """Tokens that the second graph reads."""
    state: list[Carried]
    sha256: dict[str, str]
    """Of every file that the model consists of."""


class LogitsHead:
    """The last layer of a model whose last layer is elsewhere."""

    def logits(self, hidden_XD: Tensor) -> Tensor:
        """See `Head`."""
        return hidden_XD

    def nats(self, hidden_BTD: Tensor, targets_BT: Tensor) -> Tensor:
        """See `Head`."""
        nats_BT = F.cross_entropy(
            hidden_BTD.flatten(0, 1),
            targets_BT.flatten(),
            ignore_index=IGNORE_INDEX,
            reduction="none",
        )
        return nats_BT.view_as(targets_BT)


class Graph(NamedTuple):
    """A graph, ready to run."""

    session: Any
    length: int
    """Tokens that it reads."""


class OnnxModel(LanguageModel):
    """A language model whose arithmetic is in two graphs: for one token, and for a chunk of them.

    With a state from `static_state` the graphs write its memories in place; one from
    `initial_state` never changes.
    """

    shows_hidden = False
    static_shapes = True

    def __init__(self, folder: Path, manifest: ExportManifest) -> None:
        super().__init__()
        self.head, self.chunk = LogitsHead(), manifest["chunk"]
        self._carried, self._memory_length = manifest["state"], longest_memory(manifest)
        self._graphs = [
            Graph(open_session(folder / file), length)
            for file, length in ((CHUNK, self.chunk), (STEP, 1))
        ]
        *_, self._vocab_size = self._graphs[0].session.get_outputs()[0].shape

    @property
    def device(self) -> torch.device:
        """See `LanguageModel`."""
        return torch.device("cpu")

    def initial_state(self, batch: int, *, inference: bool = False) -> State:
        """See `LanguageModel`."""
        state = self.static_state(batch)
        return {name.replace(PREFIX, KEPT): tensor for name, tensor in state.items()}

    def static_state(self, batch: int, *, chunk: int = 1) -> State:
        """See `LanguageModel`."""
        return {
            each["name"]: torch.full(
                (batch, *each["shape"]), each["first"], dtype=getattr(torch, each["dtype"])
            )
            for each in self._carried
        }

    def forward(self, tokens_BT: Tensor, state: State) -> Output:
        """See `LanguageModel`. A segment is cut into chunks, and single tokens after the last."""
        logits = list[Tensor]()
        kept = [name for name in state if KEPT in name]
        now = {name.replace(KEPT, PREFIX): tensor for name, tensor in state.items()}
        if kept:
            now |= {name: now[name].clone() for name in map(_as_ring, kept)}
        for graph, piece_BT in self._pieces(tokens_BT):
            logits_BTV, now = self._run(graph, piece_BT, now)
            logits.append(logits_BTV)
        if kept:
            now = {name.replace(PREFIX, KEPT): tensor for name, tensor in now.items()}
        logits_BTV = logits[0] if len(logits) == 1 else torch.cat(logits, dim=1)
        return Output(logits_BTV, now, torch.zeros(()))

    def memory_length(self) -> int:
        """See `LanguageModel`."""
        return self._memory_length

    def state_numbers(self, *, inference: bool = False) -> int:
        """See `LanguageModel`."""
        return sum(torch.Size(each["shape"]).numel() for each in self._carried)

    def _pieces(self, tokens_BT: Tensor) -> Iterator[tuple[Graph, Tensor]]:
        for graph in self._graphs:
            while tokens_BT.size(1) >= graph.length:
                yield graph, tokens_BT[:, : graph.length]
                tokens_BT = tokens_BT[:, graph.length :]

    def _run(self, graph: Graph, tokens_BT: Tensor, before: State) -> tuple[Tensor, State]:
        """Logits and the state after some tokens; memories are written in place."""
        # All of them are kept until the graph has run: the binding knows addresses only.
        tokens_BT = tokens_BT.contiguous()
        before = {name: tensor.contiguous() for name, tensor in before.items()}
        after = {
            name: tensor if is_ring(name) else torch.empty_like(tensor)
            for name, tensor in before.items()
        }
        logits_BTV = torch.empty(*tokens_BT.shape, self._vocab_size)
        binding = graph.session.io_binding()
        for name, tensor in {"tokens": tokens_BT, **_prefixed("in", before)}.items():
            binding.bind_input(*_place(name, tensor))
        for name, tensor in {"logits": logits_BTV, **_prefixed("out", after)}.items():
            binding.bind_output(*_place(name, tensor))
        graph.session.run_with_iobinding(binding)
        return logits_BTV, after


def is_export(folder: Path) -> bool:
    """Whether a folder holds an exported model."""
    return (folder / MANIFEST).is_file()


def open_export(folder: Path) -> OnnxModel:
    """Open an exported folder, after checking that its files are those that were exported."""
    manifest = read_manifest(folder)
    for name, wanted in manifest["sha256"].items():
        if file_sha256(folder / name) != wanted:
            raise UserError(
                f"{folder / name} is damaged, or of another model than {MANIFEST}; export it again"
            )
    return OnnxModel(folder, manifest)


def read_manifest(folder: Path) -> ExportManifest:
    """The manifest of an exported folder."""
    path = folder / MANIFEST
    manifest = read_document(path, ExportManifest)
    if manifest["format"] != FORMAT:
        raise UserError(f"{path} was written by another version of sparing; export it again")
    missing = {STEP, CHUNK, WEIGHTS} - manifest["sha256"].keys()
    if missing or manifest["chunk"] < 1:
        raise UserError(f"{path} is damaged: {', '.join(sorted(missing)) or 'chunk'} is missing")
    return manifest


def longest_memory(manifest: ExportManifest) -> int:
    """Positions after which every memory is full."""
    rings = [each["shape"] for each in manifest["state"] if is_ring(each["name"])]
    return max((shape[-2] if len(shape) > 1 else shape[-1] for shape in rings), default=0)


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file."""
    try:
        with open_regular(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as problem:
        raise UserError(f"{path} cannot be read: {problem.strerror or problem}") from None


def require_onnx_runtime() -> Any:
    """ONNX Runtime, or a UserError that says how to install it."""
    try:
        import onnxruntime
    except ImportError:
        raise UserError("an ONNX model needs ONNX Runtime: pip install 'sparing[onnx]'") from None
    return onnxruntime


def open_session(path: Path) -> Any:
    """Load a graph into ONNX Runtime, on as many threads as torch uses."""
    runtime = require_onnx_runtime()
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    # A thread that waits for work in a loop takes the processor from whoever has some.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as problem:
        reason = str(problem).splitlines()[0]
        raise UserError(f"ONNX Runtime cannot load {path}: {reason}") from None


def _as_ring(name: str) -> str:
    return name.replace(KEPT, PREFIX)


def _prefixed(prefix: str, state: Mapping[str, Tensor]) -> State:
    return {f"{prefix}.{name}": tensor for name, tensor in state.items()}


def _place(name: str, tensor: Tensor) -> tuple[str, str, int, Any, Sequence[int], int]:
    """The arguments that bind a tensor to an input or output of a graph."""
    kind = tensor.numpy().dtype.type
    return name, "cpu", 0, kind, tuple(tensor.shape), tensor.data_ptr()
