"""What every family must obey."""

import math

import pytest
import torch
from tests.models.tiny import CONFIGS, ROUGH_STARTS, VOCAB, tiny
from torch import Tensor, nn

from sparing.models import FAMILIES
from sparing.models.api import (
    IGNORE_INDEX,
    LanguageModel,
    State,
    concat_lanes,
    crop_rings,
    fill_static,
    grow_rings,
    select_lanes,
)
from sparing.models.cost import cost

every_family = pytest.mark.parametrize("name", CONFIGS)


def text(batch: int = 2, length: int = 12) -> Tensor:
    return torch.randint(0, VOCAB, (batch, length), generator=torch.Generator().manual_seed(3))


def run(
    model: LanguageModel, tokens_BT: Tensor, sizes: int | list[int], *, inference: bool = False
) -> tuple[Tensor, State]:
    state, pieces = model.initial_state(tokens_BT.size(0), inference=inference), []
    for piece_BT in tokens_BT.split(sizes, dim=1):
        out = model(piece_BT, state)
        state, pieces = out.state, [*pieces, out.hidden_BTD]
    return torch.cat(pieces, dim=1), state


def test_every_family_has_a_tiny_config() -> None:
    assert {family for family, _ in CONFIGS.values()} == set(FAMILIES)


@every_family
def test_the_future_is_invisible(name: str) -> None:
    model, tokens_BT = tiny(name), text()
    changed_BT = tokens_BT.clone()
    changed_BT[:, 7] = (changed_BT[:, 7] + 1) % VOCAB
    before, after = run(model, tokens_BT, 12)[0], run(model, changed_BT, 12)[0]
    torch.testing.assert_close(before[:, :7], after[:, :7], rtol=0, atol=0)
    assert (before[:, 7:] - after[:, 7:]).abs().amax() > 1e-3


@every_family
@pytest.mark.parametrize("size", [1, 5])
def test_segments_do_not_change_the_answer(name: str, size: int) -> None:
    model, tokens_BT = tiny(name), text()
    whole, whole_state = run(model, tokens_BT, 12)
    cut, cut_state = run(model, tokens_BT, size)
    torch.testing.assert_close(cut, whole)
    assert whole_state.keys() == cut_state.keys()
    for key in whole_state:
        torch.testing.assert_close(cut_state[key], whole_state[key])


@every_family
@torch.no_grad()
def test_the_state_alone_is_that_of_a_whole_pass(name: str) -> None:
    model, tokens_BT = tiny(name), text(2, 80)
    for inference in (True, False):
        state = model.initial_state(2, inference=inference)
        for piece_BT in tokens_BT.split(16, dim=1):
            state = model.advance(piece_BT, state)
        wanted = run(model, tokens_BT, 16, inference=inference)[1]
        assert state.keys() == wanted.keys()
        for key, tensor in wanted.items():
            torch.testing.assert_close(state[key], tensor)


@every_family
def test_a_model_can_be_made_and_read_in_inference_mode(name: str) -> None:
    with torch.inference_mode():
        found, _ = run(tiny(name), text(), 5, inference=True)
    torch.testing.assert_close(found, run(tiny(name), text(), 5, inference=True)[0])


@every_family
def test_batch_rows_do_not_talk(name: str) -> None:
    model, tokens_BT = tiny(name), text(3)
    together, state = run(model, tokens_BT, 6)
    alone, alone_state = run(model, tokens_BT[1:2], 6)
    torch.testing.assert_close(together[1:2], alone)
    for key, tensor in select_lanes(state, slice(1, 2)).items():
        torch.testing.assert_close(tensor, alone_state[key])


@every_family
@pytest.mark.parametrize("learning", [True, False])
def test_restarted_lanes_are_fresh_and_the_others_go_on(name: str, learning: bool) -> None:
    model, (early_BT, late_BT) = tiny(name).train(learning), text(4).split(7, dim=1)
    with torch.set_grad_enabled(learning):
        state = run(model, early_BT, 4)[1]
        one, two = (
            torch.tensor([False, True, False, False]),
            torch.tensor([False, False, True, False]),
        )
        reset = model.reset_lanes(state, one)
        on, fresh = read_on(model, late_BT, state), read_on(model, late_BT, model.initial_state(4))
        for chosen, found in (
            (one, read_on(model, late_BT, reset)),
            (one | two, read_on(model, late_BT, model.reset_lanes(reset, two))),
        ):
            torch.testing.assert_close(found[chosen], fresh[chosen])
            torch.testing.assert_close(found[~chosen], on[~chosen])
        # Or nothing was shown: a model that carries something must tell the two apart.
        assert ((on - fresh).abs().amax((1, 2)) > 1e-3).all() or not state


def read_on(model: LanguageModel, tokens_BT: Tensor, state: State) -> Tensor:
    """In segments of which the second finds a memory partly older than a restart."""
    pieces = []
    for piece_BT in tokens_BT.split([1, 3, 1], dim=1):
        out = model(piece_BT, state)
        state, pieces = out.state, [*pieces, out.hidden_BTD]
    return torch.cat(pieces, dim=1)


@every_family
def test_restarting_leaves_what_was_handed_out_alone(name: str) -> None:
    model = tiny(name)
    state = run(model, text(2), 6)[1]
    before = {key: tensor.clone() for key, tensor in state.items()}
    model.reset_lanes(state, torch.tensor([True, False]))
    assert all(torch.equal(tensor, before[key]) for key, tensor in state.items())


@pytest.mark.parametrize(
    "name", ["sha_rnn", "transformer_xl", "stack", "stack of Transformer-XL", "stack of SHA-RNN"]
)
def test_restarting_copies_no_memory(name: str) -> None:
    model = tiny(name)
    state = run(model, text(2), 6)[1]
    reset = model.reset_lanes(state, torch.tensor([True, False]))
    memories = [key for key, tensor in state.items() if tensor.ndim > 2]
    assert memories
    assert all(reset[key] is state[key] for key in memories)


@every_family
def test_state_is_lanes_first_and_free_of_the_graph(name: str) -> None:
    model = tiny(name).train()
    state = model(text(3), model.initial_state(3)).state
    assert all(tensor.size(0) == 3 and not tensor.requires_grad for tensor in state.values())
    assert state.keys() == model.initial_state(3).keys()


@every_family
def test_every_parameter_gets_a_gradient_and_one_group(name: str) -> None:
    model, tokens_BT = tiny(name).train(), text()
    first = model(tokens_BT, model.initial_state(2))
    # Some parameters are for the start of a text, others for what follows it.
    for out in (first, model(tokens_BT, first.state)):
        nats_BT = model.head.nats(out.hidden_BTD[:, :-1], tokens_BT[:, 1:])
        (nats_BT.mean() + out.penalty).backward()
    unused = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert not unused
    grouped = [name for group in model.parameter_groups() for name, _ in group.named]
    assert sorted(grouped) == sorted(name for name, _ in model.named_parameters())
    assert all(
        parameter.size(0) % group.blocks == 0
        for group in model.parameter_groups()
        for _, parameter in group.named
    )


@every_family
def test_loss_at_initialisation_is_near_the_logarithm_of_the_vocabulary(name: str) -> None:
    torch.manual_seed(0)
    family, config = CONFIGS[name]
    model, tokens_BT = FAMILIES[family].model(config).eval(), text(8, 20)
    out = model(tokens_BT, model.initial_state(8))
    loss = model.head.nats(out.hidden_BTD[:, :-1], tokens_BT[:, 1:]).mean().item()
    assert loss == pytest.approx(math.log(VOCAB), abs=ROUGH_STARTS.get(name, 0.25))


@every_family
def test_ignored_targets_cost_nothing(name: str) -> None:
    model, tokens_BT = tiny(name), text()
    out = model(tokens_BT, model.initial_state(2))
    targets_BT = tokens_BT.clone()
    targets_BT[:, 4:] = IGNORE_INDEX
    nats_BT = model.head.nats(out.hidden_BTD, targets_BT)
    assert not nats_BT[:, 4:].any()
    log_probability = model.head.logits(out.hidden_BTD).log_softmax(-1)
    expected = -log_probability[:, :4].gather(-1, tokens_BT[:, :4, None]).squeeze(-1)
    torch.testing.assert_close(nats_BT[:, :4].double(), expected, rtol=1e-6, atol=1e-6)


@every_family
def test_collapsing_changes_no_answer_and_no_more_than_the_counts(name: str) -> None:
    model, tokens_BT = tiny(name), text()
    before, counted = run(model, tokens_BT, 5)[0], cost(model)
    model.collapse()
    torch.testing.assert_close(run(model, tokens_BT, 5)[0], before)
    assert sum(p.numel() for p in model.parameters()) == counted.parameters_deployed
    assert counted.flops_per_token > 0


@every_family
def test_the_full_state_is_as_large_as_the_model_says(name: str) -> None:
    model = tiny(name)
    _, state = run(model, text(1, 80), 16)
    assert sum(tensor.numel() for tensor in state.values()) == model.state_numbers()


@every_family
def test_a_state_for_inference_changes_no_answer(name: str) -> None:
    model = tiny(name)
    expected, _ = run(model, text(1, 80), 16)
    found, state = run(model, text(1, 80), 16, inference=True)
    torch.testing.assert_close(found, expected)
    assert sum(x.numel() for x in state.values()) == model.state_numbers(inference=True)


@every_family
@pytest.mark.parametrize("inference", [False, True])
@torch.no_grad()
def test_the_memory_is_full_after_as_many_positions_as_the_model_says(
    name: str, inference: bool
) -> None:
    model = tiny(name)
    length = model.memory_length()
    tokens_BT = text(1, length + 9)
    _, full = run(model, tokens_BT[:, :length], 7, inference=inference) if length else (None, {})
    _, later = run(model, tokens_BT, 7, inference=inference)
    if name == "adaptive_span expire":
        # What has expired is dropped, so how much is kept depends on the text.
        assert filled_positions(later) <= length * model.config.depth
        return
    assert filled_positions(full) == filled_positions(later)
    if length:
        _, earlier = run(model, tokens_BT[:, : length - 1], 7, inference=inference)
        assert filled_positions(earlier) < filled_positions(full)


def filled_positions(state: State) -> int:
    """Positions of all memories that hold something other than zeros."""
    memories = [tensor.flatten(2) for tensor in state.values() if tensor.ndim > 2]
    return sum(int(memory_BMX.any(dim=2).sum()) for memory_BMX in memories)


@every_family
@torch.no_grad()
def test_attention_adds_up_to_one_and_sees_neither_the_future_nor_another_text(name: str) -> None:
    model, (early_BT, late_BT) = tiny(name), text(2, 14).split([9, 5], dim=1)
    state = run(model, early_BT, 4, inference=True)[1]
    reset = model.reset_lanes(state, torch.tensor([False, True]))
    found = model.attention_weights(late_BT, reset)
    fresh = model.attention_weights(late_BT, model.initial_state(2, inference=True))
    on = model.attention_weights(late_BT, state)
    assert found.keys() == fresh.keys() == on.keys()
    assert bool(found) == (name in SHOWN)
    for place, weights_BHTS in found.items():
        assert weights_BHTS.shape[2:] == (5, 14)
        torch.testing.assert_close(weights_BHTS.sum(-1), torch.ones_like(weights_BHTS[..., 0]))
        assert not weights_BHTS.triu(10).any()
        torch.testing.assert_close(weights_BHTS[0], on[place][0])
        assert not weights_BHTS[1, ..., :9].any()
        torch.testing.assert_close(weights_BHTS[1, ..., 9:], fresh[place][1])
        assert len(model.learned_windows().get(place, weights_BHTS[0])) == weights_BHTS.size(1)


SHOWN = {
    "sha_rnn", "sha_rnn all layers", "sha_rnn gru", "sha_rnn qrnn", "sha_rnn pre-norm",
    "sha_rnn as drawn", "sha_rnn deployed", "stack", "stack n-grams", "stack with mtp",
    "stack in rounds", "stack gelu", "stack of SHA-RNN", "stack with learned starts",
}  # fmt: skip
"""Models with layers that show their attention."""


SEGMENTS = {1: [1] * 90, 7: [7, 3, 5, 1, 1, 7, 6] + [7] * 9}
"""Lengths of segments that fill every ring, by the longest among them."""


@every_family
@pytest.mark.parametrize("chunk", SEGMENTS)
@torch.no_grad()
def test_a_static_state_changes_no_answer_and_no_shape(name: str, chunk: int) -> None:
    model, sizes = tiny(name), SEGMENTS[chunk]
    tokens_BT = text(2, sum(sizes))
    expected, _ = run(model, tokens_BT, sizes, inference=True)
    state = first = model.static_state(2, chunk=chunk)
    shapes, pieces = shapes_of(first), []
    for piece_BT in tokens_BT.split(sizes, dim=1):
        out = model(piece_BT, state)
        state, pieces = out.state, [*pieces, out.hidden_BTD]
        assert shapes_of(state) == shapes
    torch.testing.assert_close(torch.cat(pieces, dim=1), expected)
    # Rings are written in place, or every token would copy them all.
    rings = [key for key in first if "ring." in key]
    assert all(state[key].data_ptr() == first[key].data_ptr() for key in rings)


def shapes_of(state: State) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {key: (tensor.shape, tensor.dtype) for key, tensor in state.items()}


@every_family
@torch.no_grad()
def test_static_lanes_of_different_age_live_in_one_batch(name: str) -> None:
    model, tokens_BT = tiny(name), text(2, 92)
    old_BT, young_BT = tokens_BT[:1, :84], tokens_BT[1:, :5]
    states = [read_static(model, each_BT)[1] for each_BT in (old_BT, young_BT)]
    together, _ = read_static(model, tokens_BT[:, 84:], concat_lanes(states), 1)
    for lane, each_BT in enumerate((old_BT, young_BT)):
        whole_BT = torch.cat([each_BT, tokens_BT[lane : lane + 1, 84:]], dim=1)
        sizes = [piece_BT.size(1) for piece_BT in each_BT.split(7, dim=1)] + [1] * 8
        alone, _ = run(model, whole_BT, sizes, inference=True)
        torch.testing.assert_close(together[lane : lane + 1], alone[:, -8:])


@every_family
@pytest.mark.parametrize("early", [5, 84])
@torch.no_grad()
def test_a_static_state_goes_on_where_a_carried_one_stands(name: str, early: int) -> None:
    model, tokens_BT = tiny(name), text(2, early + 20)
    _, carried = run(model, tokens_BT[:, :early], 7, inference=True)
    before = {key: tensor.clone() for key, tensor in carried.items()}
    static = fill_static(model.static_state(2), carried)
    if static is None:
        assert name == "adaptive_span expire"
        return
    assert all(torch.equal(tensor, before[key]) for key, tensor in carried.items())
    if early == 5 and not model.attends_to_empty_slots:
        static = crop_rings(static, 16)
        _, static = read_static(model, tokens_BT[:, 5:16], static, 1)
        static, early = grow_rings(static, model.static_state(2)), 16
    found, _ = read_static(model, tokens_BT[:, early:], static, 1)
    whole, _ = run(
        model, tokens_BT, [7] * 12 + [1] * 20 if early == 84 else [5] + [1] * 20, inference=True
    )
    torch.testing.assert_close(found, whole[:, early:])


@every_family
@torch.no_grad()
def test_a_static_lane_can_be_restarted(name: str) -> None:
    model, (early_BT, late_BT) = tiny(name), text(2, 92).split([84, 8], dim=1)
    whole_BT = torch.cat([early_BT, late_BT], dim=1)[:1]
    going_on, _ = run(model, whole_BT, [7] * 12 + [1] * 8, inference=True)
    reset = model.reset_lanes(read_static(model, early_BT)[1], torch.tensor([False, True]))
    found, _ = read_static(model, late_BT, reset, 1)
    torch.testing.assert_close(found[1], run(model, late_BT, 1, inference=True)[0][1])
    torch.testing.assert_close(found[0], going_on[0, -8:])


@every_family
@torch.no_grad()
def test_static_states_do_not_disturb_each_other(name: str) -> None:
    model, tokens_BT = tiny(name), text(2, 35)
    expected, _ = read_static(model, tokens_BT)
    # With more and with fewer slots in its rings than the others.
    for chunk, others in ((7, 40), (40, 1)):
        state, pieces = model.static_state(2, chunk=chunk), []
        for piece_BT in tokens_BT.split(7, dim=1):
            model(text(1, 1), model.static_state(1, chunk=others))
            out = model(piece_BT, state)
            state, pieces = out.state, [*pieces, out.hidden_BTD]
        torch.testing.assert_close(torch.cat(pieces, dim=1), expected)


@every_family
@torch.no_grad()
def test_a_static_state_goes_on_with_weights_that_were_changed_and_restored(name: str) -> None:
    model, (early_BT, late_BT) = tiny(name), text(2, 35).split([21, 14], dim=1)
    expected, _ = read_static(model, late_BT, read_static(model, early_BT)[1])
    _, state = read_static(model, early_BT)
    weights = list(model.parameters())
    before = [weight.clone() for weight in weights]
    torch._foreach_mul_(weights, 1.1)
    model.after_step()
    changed, _ = read_static(model, late_BT)
    torch._foreach_copy_(weights, before)
    model.after_step()
    found, _ = read_static(model, late_BT, state)
    torch.testing.assert_close(found, expected)
    assert (read_static(model, late_BT)[0] - changed).abs().amax() > 1e-3


def read_static(
    model: LanguageModel, tokens_BT: Tensor, state: State | None = None, size: int = 7
) -> tuple[Tensor, State]:
    """Read on from a static state, or from the beginning; return the vectors and the next state."""
    state = model.static_state(tokens_BT.size(0), chunk=7) if state is None else state
    pieces = []
    for piece_BT in tokens_BT.split(size, dim=1):
        out = model(piece_BT, state)
        state, pieces = out.state, [*pieces, out.hidden_BTD]
    return torch.cat(pieces, dim=1), state


@every_family
def test_a_static_step_reads_nothing_from_the_device(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny(name)
    model.collapse()
    state = model.static_state(2, chunk=3)
    for reading in ("tolist", "item", "cpu", "numpy", "__float__", "__int__", "__bool__"):
        monkeypatch.setattr(Tensor, reading, forbidden)
    for tokens_BT in (text(2, 3), text(2, 1)):
        state = model(tokens_BT, state).state


class Step(nn.Module):
    """What is exported: a token and a state in, logits and the next state out."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens_B1: Tensor, state: State) -> tuple[Tensor, State]:
        out = self.model(tokens_B1, state)
        return self.model.head.logits(out.hidden_BTD[:, -1]), out.state


EXPORTED = [
    "sha_rnn", "sha_rnn as drawn", "awd_lstm qrnn", "mlstm", "adaptive_span",
    "adaptive_span expire", "all-attention masked", "stack with mtp", "stack of Transformer-XL",
    "stack of SHA-RNN", "stack of scans", "transformer_xl test time", "supernet of PAR",
]  # fmt: skip


@pytest.mark.parametrize("name", EXPORTED)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@torch.no_grad()
def test_a_static_step_can_be_exported(name: str) -> None:
    model = tiny(name).float()
    model.collapse()
    step, state, twin = Step(model).eval(), model.static_state(2), model.static_state(2)
    exported = torch.export.export(step, (text(2, 1), state), strict=False).module()
    for token_B1 in text(2, 3).split(1, dim=1):
        logits_BV, state = exported(token_B1, state)
        expected_BV, twin = step(token_B1, twin)
        torch.testing.assert_close(logits_BV, expected_BV)


@every_family
@pytest.mark.parametrize("inference", [False, True])
def test_the_kind_of_memory_does_not_depend_on_the_grad_mode(name: str, inference: bool) -> None:
    model = tiny(name)
    with torch.no_grad():
        without = model.initial_state(2, inference=inference)
    within = model.initial_state(2, inference=inference)
    assert {key: x.shape for key, x in within.items()} == {k: x.shape for k, x in without.items()}


@every_family
def test_costs_read_nothing_from_the_device_and_change_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny(name).train()
    with torch.no_grad():
        # Also out of range: clamping spans would be a change.
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 3)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    for reading in ("tolist", "item", "cpu", "numpy", "__float__", "__int__", "__bool__"):
        monkeypatch.setattr(Tensor, reading, forbidden)
    model.flops_per_token()
    model.state_numbers()
    monkeypatch.undo()
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())


def forbidden(*_: object) -> None:
    raise AssertionError("a tensor was read")


@every_family
def test_telemetry_is_plain_numbers(name: str) -> None:
    assert all(isinstance(value, float) for value in tiny(name).telemetry().values())
