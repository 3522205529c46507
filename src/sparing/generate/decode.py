"""Reading prompts and writing tokens after them. Axes: B batch, T segment, V vocabulary."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sparing.device import Hardware
from sparing.errors import UserError
from sparing.generate.sampling import SamplingConfig, sample
from sparing.models.api import LanguageModel, Output, State, concat_lanes


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationConfig:
    """How much to write, and how."""

    length: int = 256
    """Tokens to write after each prompt."""
    chunk: int = 1024
    """Tokens of a prompt read at a time."""
    stop: tuple[str, ...] = ()
    """Texts that end a completion; they are not part of it. Heeded by `text`, not by tokens."""
    sampling: SamplingConfig = field(default_factory=SamplingConfig)

    def __post_init__(self) -> None:
        if self.length < 1:
            raise UserError(f"length must be at least 1, not {self.length}")
        if self.chunk < 1:
            raise UserError(f"chunk must be at least 1, not {self.chunk}")
        if "" in self.stop:
            raise UserError("a stop string is empty; leave it out")


class Group(NamedTuple):
    """Prompts decoded side by side."""

    rows: list[int]
    """Their places among all prompts."""
    logits_BV: Tensor
    """Of the next token."""
    state: State


def prefill(
    model: LanguageModel, tokens_BT: Tensor, state: State, chunk: int
) -> tuple[Tensor, State]:
    """Read at least one token per lane, `chunk` at a time; logits of the next, and the state."""
    for piece_BT in torch.split(tokens_BT, chunk, dim=1):
        out: Output = model(piece_BT, state)
        state = out.state
    return model.head.logits(out.hidden_BTD[:, -1]), state


def stream_tokens(
    model: LanguageModel,
    prompts: Sequence[np.ndarray],
    config: GenerationConfig,
    *,
    start: int,
    hardware: Hardware,
) -> Iterator[np.ndarray]:
    """Yield the next id of every prompt, `config.length` times.

    Each prompt gets what it would get alone: it is read after `start` and draws from its own seed.
    """
    seeds = range(config.sampling.seed, config.sampling.seed + len(prompts))
    draws = [np.random.default_rng(seed) for seed in seeds]
    with _writing(model, hardware):
        groups = _grouped(_read_prompts(model, prompts, start, config.chunk))
    for _ in range(config.length - 1):
        ids_B = _draw(groups, config.sampling, draws)
        yield ids_B
        with _writing(model, hardware):
            groups = [_step(model, group, ids_B) for group in groups]
    yield _draw(groups, config.sampling, draws)


def _draw(
    groups: Sequence[Group], config: SamplingConfig, draws: Sequence[np.random.Generator]
) -> np.ndarray:
    uniform_B = torch.tensor([draw.random() for draw in draws], dtype=torch.float64)
    ids_B = np.empty(len(draws), dtype=np.int64)
    for group in groups:
        uniform = uniform_B[group.rows].to(group.logits_BV.device)
        ids_B[group.rows] = sample(group.logits_BV, config, uniform).cpu().numpy()
    return ids_B


def _step(model: LanguageModel, group: Group, ids_B: np.ndarray) -> Group:
    """Read the token just written, which costs the same however many came before."""
    tokens_B1 = torch.from_numpy(ids_B[group.rows]).to(model.device)[:, None]
    return Group(group.rows, *prefill(model, tokens_B1, group.state, chunk=1))


def _read_prompts(
    model: LanguageModel, prompts: Sequence[np.ndarray], start: int, chunk: int
) -> list[Group]:
    """Read prompts of one length together, so that no lane is ever padded."""
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


def _grouped(groups: Sequence[Group]) -> list[Group]:
    """Join groups whose states have one shape: memories of different lengths cannot be stacked."""
    alike: dict[tuple[tuple[str, torch.Size], ...], list[Group]] = {}
    for group in groups:
        shape = tuple((name, tensor.shape[1:]) for name, tensor in group.state.items())
        alike.setdefault(shape, []).append(group)
    return [
        Group(
            [row for group in same for row in group.rows],
            torch.cat([group.logits_BV for group in same]),
            concat_lanes([group.state for group in same]),
        )
        for same in alike.values()
    ]


@contextmanager
def _writing(model: LanguageModel, hardware: Hardware) -> Iterator[None]:
    """No dropout, no gradients, the hardware's precision.

    Entered for every step, not around them all: what the reader of a stream does between two
    tokens is not ours to change.
    """
    training = model.training
    if training:
        model.eval()
    try:
        with torch.no_grad(), hardware.autocast():
            yield
    finally:
        if training:
            model.train()
