"""Settings of a stack: patterns, checks, and a block that one registry line makes known."""

from dataclasses import dataclass, field
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from sparing.config import described, with_settings
from sparing.device import Hardware
from sparing.errors import UserError
from sparing.models.api import SizeLimit
from sparing.models.cost import cost
from sparing.models.stack.config import (
    BLOCKS,
    StackConfig,
    WindowedAttentionConfig,
    block_order,
)
from sparing.models.stack.model import Stack
from sparing.nn.block import Block, BlockConfig, ResidualConfig, Role
from sparing.nn.state import State
from sparing.runs.config import RunConfig
from sparing.search.cost import block_costs
from sparing.training.config import TrainConfig

CPU = Hardware(torch.device("cpu"), "float32")


@pytest.mark.parametrize("pattern", ["afq", "", "A f"])
def test_a_pattern_of_unknown_letters_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="f feed-forward"):
        StackConfig(vocab_size=9, pattern=pattern)


@pytest.mark.parametrize("pattern", ["a[f", "af]", "a]f[", "[a][f]", "[[a]f]", "a[]f"])
def test_brackets_that_do_not_fit_are_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="brackets"):
        StackConfig(vocab_size=9, pattern=pattern, rounds=2)


def test_spaces_in_a_pattern_are_ignored() -> None:
    config = StackConfig(vocab_size=9, pattern="a\tf\n[ a f ]", rounds=2)
    assert config.letters == "afaf"
    assert config.order == (0, 1, 2, 3, 2, 3)


def test_blocks_in_brackets_come_again() -> None:
    assert block_order("af af", 1) == (0, 1, 2, 3)
    assert block_order("af [af] f", 3) == (0, 1, 2, 3, 2, 3, 2, 3, 4)
    assert block_order("[ab]", 1) == (0, 1)


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("ngrams.lengths=2,2", "ngrams: .* rise"),
        ("ngrams.lengths=1", "rise"),
        ("windowed.span_limit=32768", "windowed: span_limit 32768 must stay below"),
        ("windowed.heads=0", "windowed: heads must be at least 1"),
        ("windowed.heads=1001", "windowed: heads must be at most 1,000"),
        ("windowed.span_starts=-1", "span_starts"),
        ("windowed.rotary_fraction=1.5", "rotary_fraction must be between 0 and 1"),
        ("relative.heads=0", "relative: heads must be at least 1"),
        ("relative.dropout=1", "dropout must be at least 0 and below 1"),
        ("single_head.memory=-1", "single_head: memory must be at least 0"),
        ("feedforward.dim=0", "feedforward: dim must be at least 1"),
        ("lstm.weight_drop=1", "lstm: weight_drop"),
        ("qrnn.weight_drop=-1", "qrnn: weight_drop"),
        ("mtp.tokens=1001", "mtp: tokens must be at most 1,000"),
        ("mtp.weight=-1", "mtp: weight"),
        ("dropout=1", "dropout must be at least 0 and below 1"),
        ("rounds=0", "rounds must be at least 1"),
        ("rounds=1001", "rounds must be at most 1,000"),
        ("shrink=0", "shrink must be at least 1"),
    ],
)
def test_settings_that_cannot_be_built_are_refused_by_name(setting: str, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        with_settings(StackConfig(vocab_size=9), [setting])


@pytest.mark.parametrize("name", ["rotary_fraction", "span_penalty"])
def test_nan_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        WindowedAttentionConfig(**{name: float("nan")})


def test_every_block_has_a_letter_of_its_own_and_is_documented() -> None:
    config = StackConfig(vocab_size=9)
    assert "".join(BLOCKS) == "xasfblgi"
    assert {block.letter: block for block in BLOCKS.values()} == config.blocks
    assert [path for path, _, note in described(config) if not note] == []


def test_blocks_are_found_by_role_in_the_order_of_the_registry() -> None:
    config = StackConfig(vocab_size=9)
    found = {role: config.letters_with(role) for role in ("attention", "dense", "recurrent")}
    assert found == {"attention": "xas", "dense": "fb", "recurrent": "lg"}
    assert config.letters_with("identity") == "i"


class Scale(Block):
    """Adds the stream times a learned vector."""

    def __init__(self, dim: int, start: float) -> None:
        super().__init__()
        self.dim = dim
        self.weight_D = nn.Parameter(torch.full((dim,), start))

    def forward(self, hidden_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        return self.weight_D * hidden_BTD, {}

    def flops_per_token(self) -> float:
        return float(self.dim)


@dataclass(frozen=True, kw_only=True, slots=True)
class ScaleConfig(BlockConfig):
    letter: ClassVar[str] = "k"
    title: ClassVar[str] = "channel scale"
    role: ClassVar[Role] = "dense"

    start: float = 0.5
    """First value of every weight."""

    def build(self, residual: ResidualConfig) -> Block:
        return Scale(residual.dim, self.start)


@dataclass(frozen=True, kw_only=True, slots=True)
class WithScale(StackConfig):
    scale: ScaleConfig = field(default_factory=ScaleConfig)


TOY = WithScale(vocab_size=9, pattern="k f k", dim=4)


def test_one_line_makes_a_block_known_to_patterns_and_settings() -> None:
    model = Stack(with_settings(TOY, ["scale.start=0.25"]))
    assert [type(block).__name__ for block in model.blocks] == [
        "Scale",
        "FeedForwardBlock",
        "Scale",
    ]
    assert model.blocks[0].weight_D.tolist() == [0.25] * 4  # type: ignore[union-attr]  # a Scale
    tokens_BT = torch.zeros(1, 3, dtype=torch.int64)
    assert model(tokens_BT, model.initial_state(1)).hidden_BTD.isfinite().all()
    assert ("scale.start", 0.5, "First value of every weight.") in described(TOY)
    assert TOY.letters_with("dense") == "fbk"


def test_one_line_makes_a_block_known_to_error_messages() -> None:
    with pytest.raises(UserError, match="k channel scale"):
        with_settings(TOY, ["pattern=kq"])
    with pytest.raises(UserError, match=r"did you mean 'scale\.start'"):
        with_settings(TOY, ["scale.stat=1"])


def test_one_line_makes_a_block_known_to_cost_tables_and_benchmarks() -> None:
    run = RunConfig(recipe="toy", family="stack", model=TOY, train=TrainConfig(steps=1))
    assert block_costs(run, "kfi", CPU, "parameters").blocks["k"] == 4
    assert block_costs(run, "kfi", CPU, "flops").blocks["k"] == 4
    small = TOY.smaller(SizeLimit(dim=2))
    assert (small.dim, small.pattern, small.scale) == (2, "kfk", ScaleConfig())
    assert cost(Stack(small)).parameters_training < cost(Stack(TOY)).parameters_training
