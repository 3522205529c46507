"""A list of modules is torch's, by another type."""

import torch
from tests.nn import block_laws as laws
from torch import nn

from sparing.nn.block import Block, Identity, TypedModuleList
from sparing.nn.state import State


def test_it_names_and_orders_its_modules_as_torch_does() -> None:
    layers = [nn.Linear(2, 3), nn.Linear(3, 4)]
    ours, torchs = TypedModuleList(layers), nn.ModuleList(layers)
    assert list(ours) == layers
    assert list(ours.state_dict()) == list(torchs.state_dict())
    assert [layer.out_features for layer in ours] == [3, 4]


def test_the_identity_adds_nothing_and_carries_nothing() -> None:
    block = Identity(laws.DIM)
    delta_BTD, state = block(laws.stream(), block.initial_state(2, laws.stream()))
    assert not delta_BTD.any()
    assert state == {} == block.skip_step(laws.stream(), {})
    assert block.flops_per_token() == block.state_numbers() == 0


def test_a_block_without_a_cheaper_way_skips_by_reading_along() -> None:
    class Counting(Block):
        def forward(self, hidden_BTD: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
            return hidden_BTD, {"count": state["count"] + hidden_BTD.size(1)}

    state = {"count": torch.zeros(2)}
    assert Counting().skip_step(laws.stream(), state)["count"].tolist() == [12, 12]
