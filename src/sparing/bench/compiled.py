"""The step of a model against its compiled form, at several positions of a text, in one run."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from sparing.device import Hardware
from sparing.errors import UserError
from sparing.generate.compiled import CompiledLane, compile_step, open_lane
from sparing.generate.decode import GenerationConfig, prefill
from sparing.models.api import LanguageModel, State, eval_mode

CHUNK = GenerationConfig().chunk
POSITIONS = (100, 8000)


class Twins:
    """One text at one position, continued by the model itself and by its compiled form."""

    def __init__(self, model: LanguageModel, state: State) -> None:
        self._model, self._state = model, state
        lane = open_lane(model, state)
        if lane is None:
            raise UserError("this model cannot be compiled: its memory does not fit into rings")
        self._lane: CompiledLane = lane
        self.plain_s, self.compiled_s, self.difference = list[float](), list[float](), 0.0

    def read(self, tokens: Sequence[int]) -> None:
        """Read tokens in both ways, and note seconds of CPU time per token."""
        plain_s, plain = _time(self._read_plain, tokens)
        compiled_s, compiled = _time(self._lane.read, tokens)
        self.plain_s.append(plain_s)
        self.compiled_s.append(compiled_s)
        for one_1V, two_1V in zip(plain, compiled, strict=True):
            self.difference = max(self.difference, float((one_1V - two_1V).abs().max()))

    def _read_plain(self, token: int) -> Tensor:
        logits_1V, self._state = prefill(self._model, torch.full((1, 1), token), self._state, 1)
        return logits_1V


def _time(read: Callable[[int], Tensor], tokens: Sequence[int]) -> tuple[float, list[Tensor]]:
    """Return CPU seconds per token, which other programs disturb little, and the logits."""
    started_at = time.process_time()
    logits = [read(token) for token in tokens]
    return (time.process_time() - started_at) / len(tokens), logits


def bench_compiled(
    model: LanguageModel,
    vocab_size: int,
    hardware: Hardware,
    positions: Sequence[int] | None = None,
    rounds: int = 12,
) -> dict[str, Any]:
    """Compare both forms at every position; positions and forms take turns, the fastest counts."""
    compile_step(model)
    generator = torch.Generator().manual_seed(0)
    twins = dict[int, Twins]()
    with eval_mode(model, hardware):
        for position in sorted(positions or POSITIONS):
            tokens_1T = torch.randint(vocab_size, (1, position), generator=generator)
            _, state = prefill(model, tokens_1T, model.initial_state(1, inference=True), CHUNK)
            twins[position] = Twins(model, state)
        for _ in range(rounds):
            for each in twins.values():
                each.read(torch.randint(vocab_size, (20,), generator=generator).tolist())
    return {"positions": [_figures(position, each) for position, each in twins.items()]}


def _figures(position: int, twins: Twins) -> dict[str, Any]:
    plain_s, compiled_s = min(twins.plain_s), min(twins.compiled_s)
    return {
        "position": position,
        "plain_ms": 1000 * plain_s,
        "compiled_ms": 1000 * compiled_s,
        "ratio": plain_s / compiled_s,
        "compiled_tokens_per_s": 1 / compiled_s,
        "largest_difference": twins.difference,
    }
