"""Prefill of prompts and step-by-step decoding. Axes: B batch, T segment, V vocabulary."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sparing.device import Hardware
from sparing.errors import UserError
from sparing.generate.compiled import CompiledLane, open_lane
from sparing.generate.sampling import SamplingConfig, sample
from sparing.models.api import LanguageModel, Output, State, concat_lanes, eval_mode, select_lanes

WHOLE = 128
"""Most tokens of a prompt that are read to the end; of a longer one, only the last is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationConfig:
    """How much text to generate, and how."""

    length: int = 256
    """Tokens to generate after each prompt."""
    chunk: int = 1024
    """Tokens of a prompt read per forward pass."""
    stop: tuple[str, ...] = ()
    """Strings that end a completion and are not part of it. Used by `generate.text` only."""
    sampling: SamplingConfig = field(default_factory=SamplingConfig)

    def __post_init__(self) -> None:
        if self.length < 1:
            raise UserError(f"length must be at least 1, not {self.length}")
        if self.chunk < 1:
            raise UserError(f"chunk must be at least 1, not {self.chunk}")
        if "" in self.stop:
            raise UserError("a stop string is empty; leave it out")


class Group(NamedTuple):
    """Prompts that are decoded in one batch."""

    rows: list[int]
    """Their indices among all prompts."""
    logits_BV: Tensor
    """Logits of the next token."""
    state: State
    lane: CompiledLane | None = None
    """What goes on from the state of a single prompt in compiled code."""


def prefill(
    model: LanguageModel, tokens_BT: Tensor, state: State, chunk: int
) -> tuple[Tensor, State]:
    """Read at least one token per lane, `chunk` at a time; return the next logits and the state."""
    length = tokens_BT.size(1)
    # Of a long prompt, or one of several chunks, only the last token is read to the end.
    ahead = length - 1 if length > min(WHOLE, chunk) else 0
    last_BT = tokens_BT[:, ahead:]
    for chunk_BT in torch.split(tokens_BT[:, :ahead], chunk, dim=1) if ahead else ():
        state = model.advance(chunk_BT, state)
    out: Output = model(last_BT, state)
    return model.head.logits(out.hidden_BTD[:, -1]), out.state


def stream_tokens(
    model: LanguageModel,
    prompts: Sequence[np.ndarray],
    config: GenerationConfig,
    *,
    start: int,
    hardware: Hardware,
) -> Iterator[np.ndarray]:
    """Yield the next id of every prompt, `config.length` times.

    The result for a prompt does not depend on the others: each starts from the token `start` and
    has its own seed.
    """
    with eval_mode(model, hardware):
        groups = _merge_groups(_read_prompts(model, prompts, start, config.chunk))
    yield from decode_groups(model, groups, config, hardware)


def decode_groups(
    model: LanguageModel, groups: Sequence[Group], config: GenerationConfig, hardware: Hardware
) -> Iterator[np.ndarray]:
    """Yield the next id of every prompt of `groups`, `config.length` times."""
    first, count = config.sampling.seed, sum(len(group.rows) for group in groups)
    generators = [np.random.default_rng(seed) for seed in range(first, first + count)]
    with eval_mode(model, hardware):
        groups = [lane for group in groups for lane in _open_lanes(model, group)]
    for _ in range(config.length - 1):
        ids_B = _sample_groups(groups, config.sampling, generators)
        yield ids_B
        with eval_mode(model, hardware):
            groups = [_step(model, group, ids_B) for group in groups]
    yield _sample_groups(groups, config.sampling, generators)


def _sample_groups(
    groups: Sequence[Group], config: SamplingConfig, generators: Sequence[np.random.Generator]
) -> np.ndarray:
    uniform_B = torch.tensor([each.random() for each in generators], dtype=torch.float64)
    ids_B = np.empty(len(generators), dtype=np.int64)
    for group in groups:
        uniform = uniform_B[group.rows].to(group.logits_BV.device)
        ids_B[group.rows] = sample(group.logits_BV, config, uniform).cpu().numpy()
    return ids_B


def _open_lanes(model: LanguageModel, group: Group) -> list[Group]:
    """Return the group, or where the model has been compiled, each of its lanes by itself.

    Compiled code reads one token in less than a part of the time that torch takes for a batch.
    """
    lanes = list[Group]()
    for number, row in enumerate(group.rows):
        one = slice(number, number + 1)
        state = select_lanes(group.state, one)
        if (lane := open_lane(model, state)) is None:
            return [group]
        lanes.append(Group([row], group.logits_BV[one], State(), lane))
    return lanes


def _step(model: LanguageModel, group: Group, ids_B: np.ndarray) -> Group:
    """Read the tokens just generated; the cost does not depend on how many came before."""
    if group.lane is not None:
        return group._replace(logits_BV=group.lane.read(int(ids_B[group.rows[0]])))
    tokens_B1 = torch.from_numpy(ids_B[group.rows]).to(model.device)[:, None]
    return Group(group.rows, *prefill(model, tokens_B1, group.state, chunk=1))


def _read_prompts(
    model: LanguageModel, prompts: Sequence[np.ndarray], start: int, chunk: int
) -> list[Group]:
    """Read prompts of equal length together, so that no lane is padded."""
    by_length: dict[int, list[int]] = {}
    for row, prompt in enumerate(prompts):
        by_length.setdefault(len(prompt), []).append(row)
    groups = []
    for length, rows in by_length.items():
        tokens_BT = np.full((len(rows), length + 1), start, dtype=np.int64)
        for lane, row in enumerate(rows):
            tokens_BT[lane, 1:] = prompts[row]
        tokens = torch.from_numpy(tokens_BT).to(model.device)
        state = model.initial_state(len(rows), inference=True)
        groups.append(Group(rows, *prefill(model, tokens, state, chunk)))
    return groups


def _merge_groups(groups: Sequence[Group]) -> list[Group]:
    """Merge groups with states of the same shape; other memories cannot be stacked."""
    by_shape: dict[tuple[tuple[str, torch.Size], ...], list[Group]] = {}
    for group in groups:
        shape = tuple((name, tensor.shape[1:]) for name, tensor in group.state.items())
        by_shape.setdefault(shape, []).append(group)
    return [
        Group(
            [row for group in same for row in group.rows],
            torch.cat([group.logits_BV for group in same]),
            concat_lanes([group.state for group in same]),
        )
        for same in by_shape.values()
    ]
