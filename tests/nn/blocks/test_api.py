"""The branch that adds nothing."""

import torch
from tests.nn.blocks import laws

from sparing.nn.blocks.api import Block, Identity
from sparing.nn.state import State


def test_the_identity_adds_nothing_and_carries_nothing() -> None:
    block = Identity(laws.DIM)
    delta_BTD, state = block(laws.stream(), block.initial_state(2, laws.stream()))
    assert not delta_BTD.any()
    assert state == {} == block.idle(laws.stream(), {})
    assert block.flops_per_token() == block.state_numbers() == 0


def test_a_branch_without_a_cheaper_way_idles_by_reading_along() -> None:
    class Counting(Block):
        def forward(self, hidden_BTD: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
            return hidden_BTD, {"count": state["count"] + hidden_BTD.size(1)}

    state = {"count": torch.zeros(2)}
    assert Counting().idle(laws.stream(), state)["count"].tolist() == [12, 12]
