"""The stack: blocks in order, compiled groups, the embedding skip."""

import math
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.models.tiny import CONFIGS
from torch import Tensor
from torch._dynamo.backends.debugging import aot_eager
from torch.fx import GraphModule

from sparing.config import with_settings
from sparing.models.api import LanguageModel
from sparing.models.cost import cost
from sparing.models.stack.config import BLOCKS, StackConfig
from sparing.models.stack.model import Stack
from sparing.models.stack.stream import Residual, compile_groups, mix_embedding
from sparing.nn import recurrent
from sparing.nn.attention import window_heads as span
from sparing.nn.attention.windowed import WindowedAttentionBlock
from sparing.nn.state import select_prefix
from sparing.plot.context import head_windows

SMALL = [
    "dim=8",
    "windowed.heads=2",
    "windowed.head_dim=4",
    "relative.heads=2",
    "relative.head_dim=4",
    "relative.memory=4",
    "single_head.memory=4",
    "feedforward.dim=8",
]


def stack(pattern: str, *settings: str) -> Stack:
    config = StackConfig(vocab_size=9)
    return Stack(with_settings(config, [f"pattern={pattern}", *SMALL, *settings]))


def test_rounds_use_the_same_blocks_again() -> None:
    torch.manual_seed(0)
    round_, flat = stack("a [l f a] f", "rounds=2"), stack("a lfa lfa f")
    order = (0, 1, 2, 3, 1, 2, 3, 4)
    assert round_.order == order
    for parameter in round_.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    own = round_.state_dict()
    for name, tensor in flat.state_dict().items():
        kind, _, rest = name.partition(".")
        if kind == "blocks":
            place, _, rest = rest.partition(".")
            name = f"blocks.{order[int(place)]}.{rest}"
        tensor.copy_(own[name])
    tokens, states = torch.randint(0, 9, (2, 12)), [m.initial_state(2) for m in (round_, flat)]
    for _ in range(3):
        outs = [m(tokens, state) for m, state in zip((round_, flat), states, strict=True)]
        torch.testing.assert_close(outs[0].hidden_BTD, outs[1].hidden_BTD)
        states = [out.state for out in outs]
    assert states[0].keys() == states[1].keys()
    assert round_.flops_per_token() == flat.flops_per_token()
    assert round_.state_numbers() == flat.state_numbers()


def test_every_round_has_a_buffer_of_its_own() -> None:
    model = stack("[a f]", "rounds=2", "windowed.span_limit=16", "windowed.span_starts=8")
    tokens, state, places = torch.zeros(1, 2, dtype=torch.int64), model.initial_state(1), set()
    with torch.no_grad():
        for _ in range(120):
            state = model(tokens, state).state
            places |= {state[f"blocks.{n}.entries"].untyped_storage().data_ptr() for n in (0, 2)}
    # A window of 256, and as much space behind it: one copy in 128 steps, not one in each.
    assert len(places) <= 6


def test_groups_end_after_a_dense_block_and_begin_with_an_lstm() -> None:
    blocks = list(stack("af gf lf a lf gs").blocks)
    cuts = [(group.start, group.stop) for group in compile_groups(blocks)]
    assert cuts == [(0, 2), (2, 4), (4, 6), (6, 7), (7, 9), (9, 11)]


@pytest.mark.parametrize("letter", BLOCKS)
def test_a_block_adds_little_at_first(letter: str) -> None:
    torch.manual_seed(0)
    wide = ["dim=64", "windowed.head_dim=32", "relative.head_dim=32", "feedforward.dim=64"]
    block = stack(letter, *wide)._block(0).eval()
    hidden = torch.randn(1, 5, 64)
    delta, _ = block(hidden, block.initial_state(1, hidden))
    # As a share of the stream's norm; nothing where the last matrix starts at zero.
    bound = {"a": 0.0, "f": 0.0, "i": 0.0, "b": 0.8}.get(letter, 0.3)
    assert delta.norm() <= bound * hidden.norm()


def test_after_every_block_the_stream_is_mixed_with_the_embedding() -> None:
    torch.manual_seed(0)
    # Of three groups, two start with an LSTM.
    model = stack("l f a l").double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    tokens, state = torch.randint(0, 9, (2, 12)), model.initial_state(2)
    first = hidden = F.rms_norm(model.embedding(tokens), (8,))
    for place, block in enumerate(model.blocks):
        delta, _ = block(hidden, select_prefix(state, f"blocks.{place}"))
        hidden = model.resid_lambdas[place] * (hidden + delta) + model.x0_lambdas[place] * first
    torch.testing.assert_close(model(tokens, state).hidden_BTD, F.rms_norm(hidden, (8,)))


def test_lambdas_are_not_rounded_to_the_precision_of_the_stream() -> None:
    lambdas = torch.tensor([[1.003], [0.0]])
    hidden = torch.full((1, 1, 4), 100.0, dtype=torch.bfloat16)
    out = mix_embedding(Residual(hidden, hidden, lambdas), hidden, 0)
    assert out.dtype == torch.bfloat16
    assert out.float().mean() > 100.1


def test_multi_token_prediction_ends_with_the_training() -> None:
    model = stack("f", "mtp.tokens=2", "mtp.weight=0.5")
    tokens, state = torch.zeros(1, 10, dtype=torch.int64), model.initial_state(1)
    full = model(tokens, state).penalty.item()
    assert full == pytest.approx(0.5 * 1.5 * math.log(9), rel=1e-5)
    model.before_step(30, 0.75)
    assert model(tokens, state).penalty.item() == pytest.approx(full / 4, rel=1e-5)
    assert model.eval()(tokens, state).penalty == 0
    assert cost(model).parameters_deployed == sum(p.numel() for p in stack("f").parameters())


def test_spans_are_reported_by_layer_and_head() -> None:
    spans = ["windowed.span_limit=64", "windowed.span_starts=10,20", "windowed.ramp=4"]
    model = stack("f a", *spans)
    windows = head_windows(model.telemetry())
    assert {place: round(window) for place, window in windows.items()} == {(1, 0): 14, (1, 1): 24}


def test_the_cost_follows_the_learned_spans() -> None:
    model = stack("a", "windowed.span_limit=4096", "windowed.span_starts=2000")
    before = cost(model)
    with torch.no_grad():
        model.blocks[0].log_span.fill_(1.0)
    after = cost(model)
    assert after.flops_per_token < before.flops_per_token / 10
    assert after.state_bytes < before.state_bytes / 5


def test_the_settings_of_attention_reach_it() -> None:
    plain = stack("a").blocks[0]
    changed = stack("a", "windowed.key_shift=true", "windowed.rotary_fraction=0").blocks[0]
    assert "key" in changed.initial_state(1, torch.zeros(1))
    assert "key" not in plain.initial_state(1, torch.zeros(1))
    assert changed.attend.rotary.sine_PF.abs().max() == 0
    assert plain.attend.rotary.sine_PF.abs().max() > 0.9


@pytest.mark.parametrize("pattern", ["as", "ax", "sf", "alf", "fia", "ff"])
@torch.no_grad()
def test_to_advance_is_to_read_without_the_answer(pattern: str) -> None:
    torch.manual_seed(0)
    model = stack(pattern, "single_head.memory=0", "relative.memory=0").eval()
    tokens_BT, before = torch.randint(0, 9, (2, 7)), model.initial_state(2, inference=True)
    after = model.advance(tokens_BT, before)
    torch.testing.assert_close(after, model(tokens_BT, before).state)


def test_memory_follows_the_longest_span() -> None:
    model = stack("af", "windowed.span_limit=4096", "windowed.span_starts=10,700")
    before = model.initial_state(1)
    assert before["blocks.0.entries"].size(1) == 768
    block = model._block(0)
    assert isinstance(block, WindowedAttentionBlock)
    with torch.no_grad():
        block.log_span[1] = torch.log1p(torch.tensor(20.0))
    state = model(torch.zeros(1, 900, dtype=torch.int64), before).state
    assert state["blocks.0.entries"].size(1) == 256


def compilations(model: Stack, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Compile `model` as on a GPU, kernels included; the code that is made of it is counted."""
    from sparing.ops.fo_pooling.fused import fo_pooling
    from sparing.ops.window_attention.fused import window_attention

    made = Counter[str]()

    def counting(graph: GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        made["learning" if torch.is_grad_enabled() else "reading"] += 1
        return aot_eager(graph, inputs)

    torch._dynamo.reset()
    monkeypatch.setattr(span, "window_attention", window_attention)
    monkeypatch.setattr(recurrent, "fo_pooling", lambda gates, cell, _: fo_pooling(gates, cell))
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counting))
    model.compile_parts()
    return made


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # dynamo looks at it itself
@pytest.mark.parametrize(
    # Of the last, three kinds of groups, and what surrounds an LSTM on either side.
    ("pattern", "kinds"),
    [
        ("af af af", 1),
        pytest.param("gf af gf a gf", 3, marks=pytest.mark.soak),
        pytest.param("lf a lf a f", 3 + 2, marks=pytest.mark.soak),
    ],
)
def test_one_piece_of_code_serves_all_groups_of_a_kind_for_ever(
    pattern: str, kinds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans = ["windowed.span_limit=4096", "windowed.span_starts=20,230"]
    model = stack(pattern, "dim=32", "windowed.head_dim=16", *spans)
    made = compilations(model, monkeypatch)
    tokens = torch.zeros(2, 16, dtype=torch.int64)
    for _ in range(2):
        with torch.autocast("cpu", torch.float16):
            state = model.initial_state(2)
        for step in range(3):
            with torch.autocast("cpu", torch.float16):
                out = model(tokens, state)
                model.head.nats(out.hidden_BTD, tokens).sum().backward()
            state = out.state if step else {k: t.clone() for k, t in out.state.items()}
            with torch.no_grad():
                attention = next(
                    b for b in model.modules() if isinstance(b, WindowedAttentionBlock)
                )
                # Past the grain of memories, once by more than a segment and once by less.
                attention.log_span[1] += math.log(2 - 0.9 * (step % 2))
    model.eval()
    with torch.no_grad(), torch.autocast("cpu", torch.float16):
        state = model(tokens, model.initial_state(2)).state
        model(tokens, state)
    assert made == {"learning": kinds, "reading": kinds}


def _wide(name: str) -> LanguageModel:
    """As the tiny one, with heads of the width that the kernel needs."""
    torch.manual_seed(7)
    wide = ["windowed.head_dim=16", "relative.head_dim=16"]
    return Stack(with_settings(CONFIGS[name][1], wide))


def compiled_and_plain(name: str) -> tuple[LanguageModel, LanguageModel]:
    one, other = (_wide(name).float().cuda() for _ in range(2))
    one.compile_parts()
    return one, other


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
# The compiler of torch 2.11 warns of torch's own code, and of reading what it traces.
@pytest.mark.filterwarnings("ignore::Warning:torch")
@pytest.mark.parametrize(
    "name", [name for name, (family, _) in CONFIGS.items() if family == "stack"]
)
def test_compiled_groups_give_the_same_answer(name: str) -> None:
    tokens = torch.randint(0, 11, (2, 32), generator=torch.Generator().manual_seed(0)).cuda()
    answers = []
    for model in compiled_and_plain(name):
        state = model(tokens, model.initial_state(2)).state
        hidden = model(tokens, state).hidden_BTD
        hidden[..., 0].square().sum().backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        answers.append([hidden.detach(), *gradients])
    for found, right in zip(*answers, strict=True):
        assert (found - right).norm() <= 2e-2 * right.norm() + 1e-3
