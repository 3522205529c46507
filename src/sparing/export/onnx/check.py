"""Compares exported graphs, run by ONNX Runtime, with the model they were made from.

Axes: B batch, T segment, V vocabulary.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

from sparing.errors import UserError
from sparing.models.api import LanguageModel, Output, State, select_lanes
from sparing.models.onnx_runtime import OnnxModel, longest_memory, open_export, read_manifest

TOLERANCE = 1e-4
"""Largest difference of float32 logits, as a share of the largest logit where that is above 1."""
MOST_BITS = 0.05
"""Most bits per token that int8 weights may cost, in the mean, on text that the model writes."""
STEPS = 500
"""Tokens that both write one by one; memory becomes full half-way."""
LANES = 2


@dataclass(slots=True)
class Comparison:
    """What was found, in all calls so far."""

    largest_difference: float = 0.0
    """Of a logit."""
    largest_logit: float = 0.0
    bits: float = 0.0
    """Sum, over all tokens, of the divergence of the graphs' probabilities from the model's."""
    tokens: int = 0

    @property
    def extra_bits(self) -> float:
        """What a token that the model itself draws costs more under the graphs, in bits."""
        return self.bits / self.tokens

    @property
    def tolerance(self) -> float:
        """The difference of logits that rounding explains."""
        return TOLERANCE * max(1.0, self.largest_logit)

    def add(self, wanted_BTV: Tensor, found_BTV: Tensor) -> None:
        """Compare the logits of a call."""
        before_1 = torch.tensor([self.largest_difference])
        differences = torch.cat([(wanted_BTV - found_BTV).abs().flatten(), before_1])
        # Unlike Python's `max`, this one keeps a NaN.
        self.largest_difference = float(differences.max())
        self.largest_logit = max(self.largest_logit, float(wanted_BTV.abs().max()))
        wanted, found = (x.double().log_softmax(-1) for x in (wanted_BTV, found_BTV))
        self.bits += float((wanted.exp() * (wanted - found)).sum()) / math.log(2)
        self.tokens += wanted_BTV.shape[:2].numel()


class Pair:
    """A model and its graphs, reading the same text."""

    def __init__(self, model: LanguageModel, graphs: OnnxModel, bar: "tqdm[None]") -> None:
        self.model, self.graphs, self.bar = model, graphs, bar
        self.wanted_state: State = model.initial_state(LANES, inference=True)
        self.found_state = graphs.static_state(LANES)
        self.comparison = Comparison()

    @torch.no_grad()
    def read(self, tokens_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Read one piece; return the next token's logits (B, V) of the model and of the graphs."""
        wanted: Output = self.model(tokens_BT, self.wanted_state)
        found: Output = self.graphs(tokens_BT, self.found_state)
        self.wanted_state, self.found_state = wanted.state, found.state
        wanted_BTV = self.model.head.logits(wanted.hidden_BTD)
        self.comparison.add(wanted_BTV, found.hidden_BTD)
        self.bar.update(tokens_BT.size(1))
        return wanted_BTV[:, -1], found.hidden_BTD[:, -1]

    def write(self, tokens_B1: Tensor, steps: int, *, same: bool) -> None:
        """Let both write what they find most probable; with `same`, refuse different texts."""
        for _ in range(steps):
            wanted_BV, found_BV = self.read(tokens_B1)
            tokens_B1 = wanted_BV.argmax(-1, keepdim=True)
            if same and self._differs(wanted_BV, tokens_B1, found_BV.argmax(-1, keepdim=True)):
                raise UserError(
                    "the exported graphs generate a different text; nothing was written"
                )

    def _differs(self, wanted_BV: Tensor, tokens_B1: Tensor, other_B1: Tensor) -> bool:
        """Whether the graphs choose other tokens, and not of several equally probable ones."""
        gap_B1 = wanted_BV.gather(-1, tokens_B1) - wanted_BV.gather(-1, other_B1)
        return not bool((gap_B1 <= self.comparison.tolerance).all())

    def drop_lanes(self, kept: slice) -> None:
        """Go on with some of the lanes."""
        self.wanted_state = select_lanes(self.wanted_state, kept)
        self.found_state = select_lanes(self.found_state, kept)


def check_graphs(folder: Path, model: LanguageModel, vocab_size: int) -> Comparison:
    """Compare over all of memory and beyond; refuse graphs that answer differently."""
    manifest = read_manifest(folder)
    chunk, exact = manifest["chunk"], manifest["weights"] == "float32"
    # Both graphs are used up to the middle of the steps, where memory becomes full.
    chunks = max(1, -(-(longest_memory(manifest) - STEPS // 2) // chunk))
    draw = torch.Generator().manual_seed(0)
    with tqdm(total=(chunks + 2) * chunk + STEPS, unit="tok", desc="check", disable=None) as bar:
        pair = Pair(model, open_export(folder), bar)
        for _ in range(chunks):
            pair.read(torch.randint(vocab_size, (LANES, chunk), generator=draw))
        first_B1 = torch.randint(vocab_size, (LANES, 1), generator=draw)
        pair.write(first_B1, STEPS, same=exact)
        pair.read(torch.randint(vocab_size, (LANES, chunk), generator=draw))
        pair.drop_lanes(slice(1))
        pair.read(torch.randint(vocab_size, (1, chunk), generator=draw))
        pair.read(first_B1[:1])
    _refuse(pair.comparison, exact=exact)
    return pair.comparison


def _refuse(found: Comparison, *, exact: bool) -> None:
    difference, bits = found.largest_difference, found.extra_bits
    # Written so that a NaN, which is the largest of all, is refused too.
    if exact and not difference <= found.tolerance:
        raise UserError(
            f"the exported logits differ by up to {difference:.2g}; nothing was written"
        )
    if not bits <= MOST_BITS:
        raise UserError(
            f"with int8 weights a token costs {bits:.3f} bits more; export without --int8"
        )
