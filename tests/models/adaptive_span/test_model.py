"""Adaptive Span and all-attention against the original programs' numbers and their report."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from tests.training.toy import Shelf, budget, callbacks, toy_training
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from sparing.models.adaptive_span.config import AdaptiveSpanConfig
from sparing.models.adaptive_span.model import AdaptiveSpanTransformer
from sparing.models.api import State
from sparing.nn.attention.span import cache_length, layer_window
from sparing.training.loop import fit
from sparing.training.optim import OptimConfig, build_optimizer
from sparing.training.schedule import ScheduleConfig

GOLDEN = Path(__file__).parents[2] / "golden"
TINY = AdaptiveSpanConfig(
    vocab_size=11, dim=8, depth=2, heads=2, ff_dim=16, span_limit=256, ramp=8, dropout=0.0
)
RENAMED = {
    "attn.attn.adaptive_span._mask.current_val": "span.ratio",
    "attn.attn.persistent_memory.key": "attention.persistent.keys",
    "attn.attn.persistent_memory.val": "attention.persistent.values",
    "attn.proj_query": "attention.query",
    "attn.proj_key": "attention.key",
    "attn.proj_val": "attention.value",
    "attn.proj_out": "attention.out",
    "norm1": "norm_attention",
    "norm2": "norm_feed",
    "ff.fc1": "feed.0",
    "ff.fc2": "feed.3",
}
TOP = {
    "in_emb.weight": "embedding.weight",
    "out_emb.weight": "head.weight",
    "out_emb.bias": "head.bias",
    "key_pe": "position",
}


def ours(theirs: str) -> str:
    """Our name of one of the original's parameters."""
    if theirs in TOP:
        return TOP[theirs]
    _, layer, rest = theirs.split(".", 2)
    old = next(name for name in RENAMED if rest == name or rest.startswith(name + "."))
    return f"blocks.{layer}.{RENAMED[old]}{rest.removeprefix(old)}"


def original(name: str, **settings: Any) -> tuple[AdaptiveSpanTransformer, dict[str, Tensor]]:
    with safe_open(GOLDEN / f"{name}.safetensors", "pt") as file:
        meta, tensors = file.metadata(), {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    config = AdaptiveSpanConfig(
        vocab_size=int(meta["vocab"]),
        dim=int(meta["hidden"]),
        depth=int(meta["layers"]),
        heads=int(meta["heads"]),
        ff_dim=int(meta["inner"]),
        persistent=int(meta["persistent"]),
        span_limit=int(meta["max_span"]),
        ramp=int(meta["ramp"]),
        span_penalty=float(meta["span_loss_coefficient"]),
        dropout=0.0,
        **settings,
    )
    model = AdaptiveSpanTransformer(config).double()
    parameters = dict(model.named_parameters())
    given = {ours(k.removeprefix("weight.")): v for k, v in tensors.items() if "weight." in k[:7]}
    assert given.keys() == parameters.keys()
    for key, value in given.items():
        parameters[key].data.copy_(value.view_as(parameters[key]))
    return model, tensors


@pytest.mark.parametrize("name", ["adaptive_span", "all_attention"])
def test_the_original_programs_numbers_are_reproduced(name: str) -> None:
    model, golden = original(name, span_gradient="closed")
    tokens_BN, state = golden["tokens"], model.initial_state(golden["tokens"].size(0))
    close, loose = {"rtol": 0, "atol": 1e-6}, {"rtol": 0, "atol": 1e-5}
    for number in range(6):
        piece = slice(16 * number, 16 * number + 16)
        out = model(tokens_BN[:, piece], state)
        targets_BT = tokens_BN[:, piece.start + 1 : piece.stop + 1]
        loss = model.head.nats(out.hidden_BTD, targets_BT).mean()
        where, state = f"block{number}.", out.state
        log_probs = model.head.logits(out.hidden_BTD).log_softmax(-1)
        torch.testing.assert_close(log_probs, golden[where + "log_probs"], **close)
        torch.testing.assert_close(loss, golden[where + "loss_nats"].view(()), **close)
        torch.testing.assert_close(out.penalty, golden[where + "span_loss"].view(()), **close)
        for layer in range(2):
            memory = state[f"blocks.{layer}.memory"]
            torch.testing.assert_close(memory, golden[f"{where}cache{layer}"], **close)
    (loss + out.penalty).backward()
    gradients = {k.removeprefix("grad."): v for k, v in golden.items() if k.startswith("grad.")}
    parameters = dict(model.named_parameters())
    assert {ours(key) for key in gradients} == set(parameters)
    for key, value in gradients.items():
        gradient = parameters[ours(key)].grad
        assert gradient is not None, key
        torch.testing.assert_close(gradient, value.view_as(gradient), **loose, msg=key)


@pytest.mark.parametrize("name", ["adaptive_span", "all_attention"])
def test_windows_and_caches_are_trimmed_as_the_original_trims_them(name: str) -> None:
    model, golden = original(name)
    model.refresh()
    for layer, spans in enumerate(model._known):
        assert spans is not None
        assert 256 - layer_window(max(spans), 256, 8) == golden[f"trim_len{layer}"].item()
        assert cache_length(max(spans), 256, 8) == golden[f"cache_size{layer}"].item()
        assert model.initial_state(1)[f"blocks.{layer}.memory"].size(1) == 128


def test_by_default_the_gradient_at_whole_spans_is_the_right_derivative() -> None:
    model, golden = original("adaptive_span")
    tokens_BT, targets_BT = golden["tokens"][:, :16], golden["tokens"][:, 1:17]

    def loss() -> Tensor:
        out = model(tokens_BT, model.initial_state(2))
        return model.head.nats(out.hidden_BTD, targets_BT).mean() + out.penalty

    before = loss()
    before.backward()
    for block in model.blocks:
        for head in range(4):
            moved = block.span.ratio.data[head].item()
            block.span.ratio.data[head] = moved + 1e-9
            slope = (loss() - before).item() / 1e-9
            block.span.ratio.data[head] = moved
            assert block.span.ratio.grad[head].item() == pytest.approx(slope, abs=2e-4)


@pytest.mark.parametrize(
    ("longest", "limit", "window"),
    [(0, 8192, 64), (32, 8192, 64), (33, 8192, 128), (100, 8192, 192), (8160, 8192, 8192)],
)
def test_the_trim_lengths_of_the_report(longest: float, limit: int, window: int) -> None:
    assert layer_window(longest, limit, 32) == window
    assert layer_window(longest - 0.5, limit, 32) == window or longest == 0
    assert cache_length(longest, limit, 32) == min(limit, window + 64)


def read(
    model: AdaptiveSpanTransformer, tokens_BT: Tensor, size: int, *, inference: bool = False
) -> tuple[Tensor, State]:
    state, pieces = model.initial_state(tokens_BT.size(0), inference=inference), []
    for piece_BT in tokens_BT.split(size, dim=1):
        out = model(piece_BT, state)
        state, pieces = out.state, [*pieces, out.hidden_BTD]
    return torch.cat(pieces, dim=1), state


@pytest.mark.parametrize("persistent", [0, 3])
@pytest.mark.parametrize("start", ["zeros", "masked"])
@pytest.mark.parametrize("cache", ["hidden", "kv"])
def test_the_size_of_a_block_makes_no_difference_even_when_caches_are_cut(
    persistent: int, start: Any, cache: Any
) -> None:
    torch.manual_seed(0)
    config = replace(TINY, persistent=persistent, start=start, cache=cache)
    model = AdaptiveSpanTransformer(config).double()
    model.blocks[0].span.ratio.data.copy_(torch.tensor([0.0, 30.5 / 256]))
    model.blocks[1].span.ratio.data.copy_(torch.tensor([70.0 / 256, 3.0 / 256]))
    tokens_BT = torch.randint(0, 11, (2, 400))
    whole, state = read(model, tokens_BT, 400)
    assert {tensor.size(1) for tensor in state.values()} == {128, 192}
    for size in (16, 64, 193):
        cut, after = read(model, tokens_BT, size)
        torch.testing.assert_close(cut, whole)
        assert {name: x.shape for name, x in after.items()} == {
            name: x.shape for name, x in state.items()
        }


def test_cached_keys_and_values_give_what_projecting_again_gives() -> None:
    torch.manual_seed(0)
    model = AdaptiveSpanTransformer(replace(TINY, span_start=0.1)).double()
    tokens_BT = torch.randint(0, 11, (2, 60))
    projected, carried = read(model, tokens_BT, 7)
    assert set(carried) == {"blocks.0.memory", "blocks.1.memory"}
    cached, carried = read(model, tokens_BT, 7, inference=True)
    assert set(carried) == {f"blocks.{n}.{part}" for n in (0, 1) for part in ("keys", "values")}
    torch.testing.assert_close(cached, projected)


def test_memory_is_projected_with_the_present_weights_and_gives_them_gradient() -> None:
    torch.manual_seed(0)
    model = AdaptiveSpanTransformer(replace(TINY, depth=1, span_start=0.1)).double()
    tokens_BT = torch.randint(0, 11, (1, 9))
    state = model(tokens_BT[:, :8], model.initial_state(1)).state
    out = model(tokens_BT[:, 8:], state)
    out.hidden_BTD.square().mul(torch.arange(8)).sum().backward()
    # The one query's window holds cached positions only, and yet keys learn.
    assert model.blocks[0].attention.key.weight.grad.abs().max() > 0
    assert model.embedding.weight.grad[tokens_BT[0, 3]].abs().max() == 0 or (
        tokens_BT[0, 3] == tokens_BT[0, 8]
    )


def test_a_cache_that_is_too_short_after_growth_is_filled_with_zeros() -> None:
    torch.manual_seed(0)
    model = AdaptiveSpanTransformer(TINY).double()
    tokens_BT = torch.randint(0, 11, (1, 300))
    state = model(tokens_BT[:, :200], model.initial_state(1)).state
    for block in model.blocks:
        block.span.ratio.data.fill_(0.9)
    short = model(tokens_BT[:, 200:], state)
    filled = {
        name: torch.cat([torch.zeros(1, 256 - x.size(1), 8).double(), x], dim=1)
        for name, x in state.items()
    }
    torch.testing.assert_close(short.hidden_BTD, model(tokens_BT[:, 200:], filled).hidden_BTD)
    assert {tensor.size(1) for tensor in short.state.values()} == {128 + 100}


def test_spans_stay_in_range_without_any_call() -> None:
    model = AdaptiveSpanTransformer(replace(TINY, span_start=0.5))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    tokens_BT = torch.randint(0, 11, (2, 5))
    for sign in (-1, 1, 1):
        optimizer.zero_grad()
        out = model(tokens_BT, model.initial_state(2))
        for block in model.blocks:
            assert 0 <= block.span.ratio.min() <= block.span.ratio.max() <= 1
        (out.hidden_BTD.sum() + sign * 1e9 * out.penalty).backward()
        optimizer.step()
    assert model.blocks[0].span.ratio.min() < 0
    model.eval()
    model.refresh()
    assert model.windows() == [[8, 8], [8, 8]]


def test_the_penalty_is_the_mean_span_of_every_layer() -> None:
    model = AdaptiveSpanTransformer(replace(TINY, span_penalty=1e-3))
    model.blocks[0].span.ratio.data.copy_(torch.tensor([0.25, 0.5]))
    out = model(torch.zeros(1, 3, dtype=torch.long), model.initial_state(1))
    assert out.penalty.item() == pytest.approx(1e-3 * 256 * 0.75 / 2)
    out.penalty.backward()
    torch.testing.assert_close(model.blocks[1].span.ratio.grad, torch.full((2,), 1e-3 * 256 / 2))


def test_fixed_spans_see_the_whole_window_and_cost_nothing() -> None:
    torch.manual_seed(0)
    model = AdaptiveSpanTransformer(replace(TINY, span="fixed", span_limit=6, depth=1)).double()
    assert model(torch.zeros(1, 2, dtype=torch.long), model.initial_state(1)).penalty == 0
    tokens_BT = torch.arange(9)[None] % 11
    base, _ = read(model.eval(), tokens_BT, 9)
    for place, seen in ((2, True), (1, False)):
        changed_BT = tokens_BT.clone()
        changed_BT[0, place] = 10
        moved = (read(model, changed_BT, 9)[0] - base)[0, 8].abs().max() > 1e-9
        assert bool(moved) is seen


def test_dynamic_spans_begin_at_the_bias_and_follow_the_text() -> None:
    torch.manual_seed(0)
    model = AdaptiveSpanTransformer(replace(TINY, span="dynamic", span_limit=1000)).double()
    hidden_BTD = torch.randn(2, 5, 8).double()
    lengths_BHT = model.blocks[0].lengths(hidden_BTD)
    gauge = model.blocks[0].span.gauge
    expected = 1000 * torch.sigmoid(hidden_BTD[1, 3] @ gauge.weight[1] - 4)
    torch.testing.assert_close(lengths_BHT[1, 1, 3].double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("persistent", [0, 4])
def test_the_initial_values_are_the_originals(persistent: int) -> None:
    torch.manual_seed(0)
    config = AdaptiveSpanConfig(
        vocab_size=205, dim=256, heads=4, depth=1, ff_dim=512, persistent=persistent * 64
    )
    model = AdaptiveSpanTransformer(config)
    for table in (model.embedding.weight, model.position):
        assert table.std().item() == pytest.approx(1, rel=0.02)
    for matrix in (model.head.weight, model.blocks[0].attention.query.weight):
        assert matrix.abs().max() <= 1 / 16
        assert matrix.std().item() == pytest.approx(1 / 16 / 3**0.5, rel=0.02)
    assert model.head.bias.abs().max() > 0
    assert not model.blocks[0].span.ratio.any()
    if persistent:
        memory = model.blocks[0].attention.persistent
        assert memory.keys.std().item() == pytest.approx(1 / 8, rel=0.02)
        assert memory.values.std().item() == pytest.approx(1 / 16, rel=0.02)
        assert memory().keys_HKN.std().item() == pytest.approx(1, rel=0.02)
        assert memory([1]).values_HNK.std().item() == pytest.approx(1, rel=0.05)
        assert model.blocks[0].feed is None


def test_words_begin_with_the_originals_clusters() -> None:
    torch.manual_seed(0)
    config = replace(TINY, vocab_size=700, dim=64, cutoffs=(100, 400), shrink=4)
    model = AdaptiveSpanTransformer(config)
    assert [tuple(w.shape) for w in model.embedding.weights] == [(100, 64), (300, 16), (300, 4)]
    for weight, projection in zip(
        model.embedding.weights, model.embedding.projections, strict=True
    ):
        assert weight.std().item() == pytest.approx(1, rel=0.05)
        assert projection.abs().max() <= projection.size(1) ** -0.5
    assert model.head.weights[1] is model.embedding.weights[1]
    assert model.head.projections[0] is model.embedding.projections[0]
    tokens_BT = torch.tensor([[3, 650]])
    model.dropout.register_forward_hook(lambda module, given, out: seen.append(out))
    seen: list[Tensor] = []
    model(tokens_BT, model.initial_state(1))
    rare = model.embedding.weights[2][250] @ model.embedding.projections[2].mT
    torch.testing.assert_close(seen[0][0, 1], 8 * rare)


class Widest(TorchDispatchMode):
    """Notes the size of the largest tensor anything returns."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, list | tuple) else [out]:
            if isinstance(tensor, Tensor):
                self.numbers = max(self.numbers, tensor.numel())
        return out


def test_what_no_head_can_see_is_never_made() -> None:
    torch.manual_seed(0)
    config = replace(TINY, span_limit=8192, span_start=32 / 8192, ramp=32)
    model = AdaptiveSpanTransformer(config)
    tokens_BT = torch.randint(0, 11, (2, 64))
    state = model(tokens_BT, model.initial_state(2)).state
    with Widest() as widest:
        out = model(tokens_BT, state)
        (out.hidden_BTD.sum() + out.penalty).backward()
    # The table of positions is the largest: a matrix of queries and limit would have 2**21.
    assert widest.numbers == model.position.numel() == 2**15
    assert not model.position.grad[:, :-80].any()


def test_bad_settings_are_refused() -> None:
    for bad in (
        {"heads": 3},
        {"span_start": 1.5},
        {"ramp": 0},
        {"mask": "paper", "ramp": 1},
        {"cutoffs": (5, 3)},
    ):
        with pytest.raises(ValueError, match=r"must|ratio|short"):
            replace(TINY, **bad)


@pytest.mark.parametrize("start", ["zeros", "masked"])
@pytest.mark.parametrize("span", ["head", "dynamic", "expire"])
def test_sixteen_bit_products_stay_close_and_carry_gradients(span: Any, start: Any) -> None:
    torch.manual_seed(0)
    model = AdaptiveSpanTransformer(replace(TINY, span=span, start=start, span_start=0.02))
    tokens_BT = torch.randint(0, 11, (2, 40))
    exact, _ = read(model, tokens_BT, 20)
    with torch.autocast("cpu", torch.bfloat16):
        rounded, state = read(model, tokens_BT, 20)
        penalty = model(tokens_BT, state).penalty
    torch.testing.assert_close(rounded.float(), exact, rtol=0, atol=0.15)
    (rounded.float().square().mul(torch.arange(8)).sum() + penalty).backward()
    assert all(p.grad.isfinite().all() for n, p in model.named_parameters() if "head." not in n)


@pytest.mark.parametrize(
    "settings", [{}, {"persistent": 8}, {"span": "dynamic"}, {"span": "expire", "span_start": 0.3}]
)
def test_it_learns_the_toy_corpus(tmp_path: Path, settings: dict[str, Any]) -> None:
    torch.manual_seed(1)
    sizes = {"dim": 16, "depth": 2, "heads": 2, "ff_dim": 32, "span_limit": 32, "ramp": 4}
    base = {"vocab_size": 7, "dropout": 0.0, "span_penalty": 1e-4, **sizes}
    config = AdaptiveSpanConfig(**(base | settings))
    run = toy_training(AdaptiveSpanTransformer(config))
    run.optimizer = build_optimizer(run.model, OptimConfig(name="adamw", lr=1e-2))
    fit(run, budget(steps=150), ScheduleConfig(), callbacks(tmp_path, Shelf()))
    inputs_BT = torch.tensor([0, 1, 2, 3, 4, 5, 6, 2, 2, 1] * 4)[None]
    out = run.model.eval()(inputs_BT[:, :-1], run.model.initial_state(1))
    nats_BT = run.model.head.nats(out.hidden_BTD, inputs_BT[:, 1:])
    assert nats_BT[:, 10:].mean().item() < 0.05
