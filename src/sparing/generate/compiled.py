"""A model's step as compiled code, kept on disk: for writing long texts on a CPU.

Axes: V vocabulary; one lane and one token at a time.
"""

import hashlib
import os
import platform
import shutil
import warnings
from contextlib import suppress
from pathlib import Path
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from sparing import __version__
from sparing.data.textfile import cache_dir
from sparing.errors import UserError
from sparing.files import atomic_folder
from sparing.generate.graph import NarrowStep, export_step
from sparing.models.api import (
    LanguageModel,
    Output,
    State,
    crop_rings,
    fill_static,
    grow_rings,
    is_ring,
)

FILE = "step.pt2"
FIRST = 512
"""Positions that the first rings of a short text hold; they double when they are full."""
TOLERANCE = 1e-3
"""Largest difference in logits at which compiled code counts as right."""


class CompiledStep:
    """Compiled code for one token of one lane, with the weights of a model."""

    def __init__(self, model: LanguageModel, path: Path) -> None:
        self.names = tuple(model.static_state(1))
        self._stamp = _stamp(model)
        step = NarrowStep(model, self.names)
        # What `torch._inductor.aoti_load_package` calls, without a second of imports.
        self._loader = torch._C._aoti.AOTIModelPackageLoader(str(path), "model", False, 1, -1)
        wanted = set(self._loader.get_constant_fqns())
        # Referred to as long as the code is: it reads these tensors themselves.
        self._weights = {name: x for name, x in step.named_buffers() if name in wanted}
        self._loader.load_constants(self._weights, False, True, True)

    def fits(self, model: LanguageModel) -> bool:
        """Whether the model's weights are still those that were compiled for."""
        return self._stamp == _stamp(model)

    def __call__(self, token: int, state: State) -> tuple[Tensor, State]:
        """Return the logits (1, V) after a token and the next state; rings are written in place."""
        tensors = [torch.full((1, 1), token), *(state[name] for name in self.names)]
        logits_1V, *others = self._loader.run(tensors)
        rest = iter(others)
        after = {name: state[name] if is_ring(name) else next(rest) for name in self.names}
        return logits_1V, after


class CompiledLane:
    """A text that is being written by compiled code."""

    def __init__(
        self, model: LanguageModel, step: CompiledStep, state: State, first: int = FIRST
    ) -> None:
        """`state` is a static one of a single lane, written to from now on, with full rings.

        They are cropped to `first` positions or twice those read, and grow with the text.
        """
        self._model, self._step, self._state = model, step, state
        seen = [int(tensor) for name, tensor in state.items() if name.endswith("seen")]
        self._seen = max(seen, default=0)
        self._full = max([x.size(-2) for name, x in state.items() if is_ring(name)], default=0)
        self._room: int | None = None
        if not model.attends_to_empty_slots:
            self._crop(max(first, 2 * self._seen))

    def read(self, token: int) -> Tensor:
        """Return the logits (1, V) after one more token."""
        if self._seen == self._room:
            self._state = grow_rings(self._state, self._model.static_state(1))
            self._crop(2 * self._seen)
        self._seen += 1
        logits_1V, self._state = self._step(token, self._state)
        return logits_1V

    def _crop(self, positions: int) -> None:
        cropped = positions < self._full
        self._room = positions if cropped else None
        if cropped:
            self._state = crop_rings(self._state, positions)


_STEPS: WeakKeyDictionary[LanguageModel, CompiledStep] = WeakKeyDictionary()
"""The steps of models that are in memory."""


def open_lane(model: LanguageModel, state: State) -> CompiledLane | None:
    """Return the text that goes on from a state of one lane, if the model has been compiled."""
    step = _STEPS.get(model)
    if step is None or not step.fits(model):
        return None
    static = fill_static(model.static_state(1), state)
    return None if static is None else CompiledLane(model, step, static)


def is_compiled(model: LanguageModel) -> bool:
    """Whether code for these very weights lies in the cache."""
    _refuse(model)
    return (_folder(model) / FILE).exists()


@torch.no_grad()
def compile_step(model: LanguageModel) -> None:
    """Have texts of this model written by compiled code, which is compiled if it is not cached."""
    _refuse(model)
    model.eval()
    folder = _folder(model)
    if not (folder / FILE).exists():
        _build(model, folder)
    try:
        _STEPS[model] = CompiledStep(model, folder / FILE)
    except RuntimeError:
        raise UserError(f"{folder} holds damaged code; delete it and compile again") from None


def _refuse(model: LanguageModel) -> None:
    weight = next(model.parameters(), None)
    if weight is None:
        raise UserError("an ONNX export cannot be compiled; compile the run it was made from")
    if model.device.type != "cpu" or weight.dtype != torch.float32:
        raise UserError(
            "only models on a CPU in float32 can be compiled; load the model on device cpu"
        )


def _build(model: LanguageModel, folder: Path) -> None:
    if shutil.which(compiler := os.environ.get("CXX", "g++")) is None:
        raise UserError(f"there is no C++ compiler {compiler!r}; install one, or name it in CXX")
    with atomic_folder(folder) as scratch:
        try:
            _compile(model, scratch / FILE)
            difference = _difference(model, CompiledStep(model, scratch / FILE))
        except Exception as problem:
            reason = str(problem).strip().split("\n")[0]
            raise UserError(f"this model cannot be compiled here: {reason}") from problem
        if not difference <= TOLERANCE:
            raise UserError(
                f"compiled code differs from the model by {difference:.1e} here; do not compile"
            )


def _compile(model: LanguageModel, path: Path) -> None:
    from torch._inductor import aoti_compile_and_package

    # The compiler follows the lengths of the rings, and specialises on 0 and 1.
    state = model.static_state(1)
    exported = export_step(NarrowStep(model, tuple(state)), state)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # The weights come from the model, which has to be loaded anyway.
        options = {"aot_inductor.package_constants_in_so": False}
        aoti_compile_and_package(exported, package_path=str(path), inductor_configs=options)


def _difference(model: LanguageModel, step: CompiledStep) -> float:
    """Return the largest difference in logits, with cropped rings that grow and with full ones."""
    worst, token = 0.0, 0
    for first in (32, 1 << 30):
        lane = CompiledLane(model, step, model.static_state(1), first)
        state = model.initial_state(1, inference=True)
        for number in range(80):
            out: Output = model(torch.full((1, 1), token), state)
            expected_1V, state = model.head.logits(out.hidden_BTD[:, -1]), out.state
            worst = max(worst, float((lane.read(token) - expected_1V).abs().max()))
            token = 7 * number % expected_1V.size(-1)
    return worst


def _stamp(model: LanguageModel) -> list[tuple[int, int]]:
    """Return what changes when torch writes to the weights or replaces them."""
    return [(weight.data_ptr(), weight._version) for weight in model.parameters()]


def _folder(model: LanguageModel) -> Path:
    """Return the folder of the code for a model, named by all that the code depends on.

    Also by the weights: small ones are written into the code.
    """
    digest = hashlib.sha256()
    # Settings without a weight or a module of their own change the step too.
    made = f"{model!r} {model.config!r}"
    for text in (__version__, torch.__version__, _processor(), made, _sources()):
        digest.update(text.encode() + b"\n")
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        digest.update(tensor.detach().contiguous().flatten().view(torch.uint8).numpy().data)
    return cache_dir() / "compiled" / digest.hexdigest()[:32]


def _sources() -> str:
    """Return a hash of the code that computes a step."""
    package, digest = Path(__file__).parents[1], hashlib.sha256()
    for folder in ("generate", "models", "nn", "ops"):
        for path in sorted((package / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _processor() -> str:
    """Return what instructions this machine has."""
    known = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        known += next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return known
