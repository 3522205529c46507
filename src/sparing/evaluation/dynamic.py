"""Dynamic evaluation: the model keeps learning from the text it has been scored on.

Each segment is scored first and then used for one step of gradient descent, while a decay pulls
the weights back to the trained ones (arXiv:1709.07432; for Transformers arXiv:1904.08378).
"""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import torch
from torch import Tensor, nn
from tqdm import tqdm

from sparing.data.stream import Segment, Stream, StreamConfig, prefetch
from sparing.data.tokens import Split
from sparing.device import Hardware
from sparing.errors import UserError
from sparing.evaluation.loss import Evaluation
from sparing.models.api import LanguageModel, Output, State

Rule = Literal["rms", "sgd"]
RATES: dict[Rule, float] = {"rms": 5e-5, "sgd": 1e-2}


@dataclass(frozen=True, kw_only=True, slots=True)
class DynamicConfig:
    """How the weights are updated during evaluation."""

    rule: Rule = "rms"
    """`rms` divides each gradient by its root mean square over training text; `sgd` does not."""
    lr: float | None = None
    """Learning rate. None: the authors' 5e-5 for `rms`, 1e-2 for `sgd`."""
    decay: float = 2e-3
    """Fraction of the distance to the trained weights that each step goes back."""
    eps: float = 2e-5
    """Added to the root mean square."""
    segment: int = 64
    """Tokens scored before each update."""
    statistics: int = 100
    """Training segments used for the root mean square."""
    lanes: int = 100
    """Lanes in which those segments are read."""

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= 1e30 or not 0 <= self.decay <= 1 or self.eps <= 0:
            raise UserError("dynamic evaluation needs 0 <= lr <= 1e30, 0 <= decay <= 1, eps > 0")
        if min(self.segment, self.statistics, self.lanes) < 1:
            raise UserError("dynamic evaluation needs segment, statistics and lanes of at least 1")

    @property
    def rate(self) -> float:
        """The learning rate."""
        return RATES[self.rule] if self.lr is None else self.lr


@dataclass(frozen=True, slots=True)
class Adaptation:
    """Weights that are being adapted, and what is needed to update and restore them."""

    parameters: list[Tensor]
    anchors: list[Tensor]
    """The trained weights."""
    scales: list[Tensor] | None
    """Divisors of the gradients; None: 1."""
    pulls: list[Tensor] | None
    """Decay of each weight; None: `config.decay` for all."""
    config: DynamicConfig

    @torch.no_grad()
    def step_(self, gradients: Sequence[Tensor]) -> None:
        """Weights += pull * (anchor - weight) - lr * gradient / scale."""
        back = list(torch._foreach_sub(self.anchors, self.parameters))
        torch._foreach_mul_(back, self.config.decay if self.pulls is None else self.pulls)
        push = list(gradients)
        if self.scales is not None:
            push = list(torch._foreach_div(push, self.scales))
        torch._foreach_add_(self.parameters, back)
        torch._foreach_add_(self.parameters, push, alpha=-self.config.rate)

    @torch.no_grad()
    def undo_(self) -> None:
        """Restore the trained weights exactly."""
        torch._foreach_copy_(self.parameters, self.anchors)


def start_adaptation(
    parameters: Sequence[nn.Parameter], rms: Sequence[Tensor] | None, config: DynamicConfig
) -> Adaptation:
    """Start an adaptation from the current weights.

    Given the root mean square `rms` of every gradient, the decay of a weight is proportional to its
    own value over the mean of all, and at most 1.
    """
    anchors = [parameter.detach().clone() for parameter in parameters]
    if rms is None:
        return Adaptation(list(parameters), anchors, None, None, config)
    total = sum(float(each.sum(dtype=torch.float64)) for each in rms)
    mean = total / sum(each.numel() for each in rms)
    pulls = [(each * (config.decay / max(mean, 1e-30))).clamp_(max=1.0) for each in rms]
    scales = [each + config.eps for each in rms]
    return Adaptation(list(parameters), anchors, scales, pulls, config)


def evaluate_dynamic(  # noqa: PLR0913  all but four are keyword-only
    model: LanguageModel,
    split: Split,
    hardware: Hardware,
    config: DynamicConfig,
    *,
    train: Split | None = None,
    protocol: str = "bytes",
    progress: bool = False,
) -> Evaluation:
    """Score `split` as one stream and adapt the model after each segment; restore it at the end.

    With several streams, weights would have learned from text that comes after a scored token.
    `train` is the text for the root mean square of the `rms` rule.
    """
    if len(split.ids) == 0:
        raise UserError("there is nothing to evaluate: the split is empty")
    if next(model.parameters(), None) is None:
        raise UserError("dynamic evaluation changes weights, and those of an ONNX export are fixed")
    if hardware.precision == "float16":
        # Small gradients would underflow.
        hardware = Hardware(hardware.device, "float32")
    started_at = time.perf_counter()
    with _gradient_mode(model):
        rms = _gradient_rms(model, train, hardware, config) if config.rule == "rms" else None
        adapted = start_adaptation(_trainable(model), rms, config)
        try:
            loss_nats = _score_and_adapt(model, split, hardware, adapted, progress=progress)
        finally:
            adapted.undo_()
    if not math.isfinite(loss_nats):
        raise UserError(
            f"dynamic evaluation diverged at a learning rate of {config.rate:g}; lower it"
        )
    words = f"{config.rule}, lr {config.rate:g}, decay {config.decay:g}"
    how = f"dynamic: {words}, one stream, segment {config.segment}, {hardware.precision}"
    precision, about = hardware.precision, {"protocol": protocol, "how": how}
    return Evaluation.of(split, loss_nats, **about, precision=precision, started_at=started_at)


def _score_and_adapt(
    model: LanguageModel,
    split: Split,
    hardware: Hardware,
    adapted: Adaptation,
    *,
    progress: bool,
) -> float:
    segment = min(adapted.config.segment, len(split.ids))
    stream = Stream(split, StreamConfig(batch=1, segment=segment))
    state, total = model.initial_state(1), 0.0
    with tqdm(
        total=len(split.ids),
        unit="tok",
        unit_scale=True,
        desc="dynamic",
        disable=None if progress else True,
    ) as bar:
        for part in prefetch(stream.one_epoch(), hardware.device):
            nats, gradients, state = _loss_and_gradients(model, part, state, hardware)
            adapted.step_(gradients)
            model.after_step()
            total += nats.item()
            bar.update(part.count)
            if not math.isfinite(total):
                break
    return total


def _loss_and_gradients(
    model: LanguageModel, part: Segment, state: State, hardware: Hardware
) -> tuple[Tensor, list[Tensor], State]:
    """Return the loss of a segment, the gradients of its mean, and the state after it."""
    with hardware.autocast():
        out: Output = model(part.inputs_BT, state)
        nats = model.head.nats(out.hidden_BTD, part.targets_BT).sum(dtype=torch.float64)
    parameters = _trainable(model)
    # Not backward(): it would change the gradients stored in the model.
    found = torch.autograd.grad(nats / part.count, parameters, allow_unused=True)
    gradients = [
        torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)
    ]
    return nats.detach(), gradients, out.state


@contextmanager
def _gradient_mode(model: LanguageModel) -> Iterator[None]:
    """Switch off dropout and enable gradients; restore the mode of every module at the end."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    for module in model.modules():
        # cuDNN supports the backward pass of a recurrent layer only in training mode; if the layer
        # has no dropout, that mode changes nothing else.
        if isinstance(module, nn.RNNBase) and not module.dropout:
            module.training = True
    try:
        with torch.enable_grad():
            yield
    finally:
        for module, training in modes.items():
            module.training = training


def _gradient_rms(
    model: LanguageModel, train: Split | None, hardware: Hardware, config: DynamicConfig
) -> list[Tensor]:
    """Root mean square of every gradient over the first segments of the training text's lanes."""
    if train is None or len(train.ids) == 0:
        raise UserError("the rms rule needs training text; without it, use the sgd rule")
    lanes = min(config.lanes, len(train.ids))
    segment = min(config.segment, math.ceil(len(train.ids) / lanes))
    stream = Stream(train, StreamConfig(batch=lanes, segment=segment))
    squares = [torch.zeros_like(parameter) for parameter in _trainable(model)]
    state, count = model.initial_state(lanes), 0
    parts = islice(stream.one_epoch(), config.statistics)
    for part in prefetch(parts, hardware.device):
        _, gradients, state = _loss_and_gradients(model, part, state, hardware)
        torch._foreach_addcmul_(squares, gradients, gradients)
        count += 1
    return [square.div_(count).sqrt_() for square in squares]


def _trainable(model: LanguageModel) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]
