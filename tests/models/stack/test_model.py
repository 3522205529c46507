"""The stack: patterns, groups, the bounds of its recipes."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.models.tiny import CONFIGS
from torch import Tensor
from torch._dynamo.backends.debugging import aot_eager
from torch.fx import GraphModule

from sparing.models.api import LanguageModel
from sparing.models.cost import cost
from sparing.models.stack.config import BRANCHES, StackConfig
from sparing.models.stack.model import Residual, Stack, blend, grouped
from sparing.nn import recurrent
from sparing.nn.attention import windowed as span
from sparing.nn.attention.windowed import WindowedAttentionBlock
from sparing.nn.state import select_prefix
from sparing.plot.spans import head_windows

SMALL = {"vocab_size": 9, "dim": 8, "heads": 2, "head_dim": 4, "ff_dim": 8, "memory": 4}


def stack(pattern: str, **settings: object) -> Stack:
    return Stack(StackConfig(pattern=pattern, **(SMALL | settings)))


@pytest.mark.parametrize("pattern", ["afq", "", "A f"])
def test_a_pattern_of_unknown_letters_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="feed-forward"):
        StackConfig(pattern=pattern, **SMALL)


@pytest.mark.parametrize("pattern", ["a[f", "af]", "a]f[", "[a][f]", "[[a]f]", "a[]f"])
def test_brackets_that_do_not_fit_are_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="brackets"):
        StackConfig(pattern=pattern, rounds=2, **SMALL)


def test_any_space_in_a_pattern_is_free() -> None:
    config = StackConfig(pattern="a\tf\n[ a f ]", rounds=2, **SMALL)
    assert config.letters == "afaf"
    assert config.places == (0, 1, 2, 3, 2, 3)


def test_rounds_are_the_same_branches_once_more() -> None:
    torch.manual_seed(0)
    round_, flat = stack("a [l f a] f", rounds=2), stack("a lfa lfa f")
    order = (0, 1, 2, 3, 1, 2, 3, 4)
    assert round_.places == order
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


def test_every_round_writes_on_a_sheet_of_its_own() -> None:
    model = stack("[a f]", rounds=2, span_limit=16, span_starts=(8.0,))
    tokens, state, places = torch.zeros(1, 2, dtype=torch.int64), model.initial_state(1), set()
    with torch.no_grad():
        for _ in range(120):
            state = model(tokens, state).state
            places |= {state[f"blocks.{n}.entries"].untyped_storage().data_ptr() for n in (0, 2)}
    # A window of 256, and as much room behind it: one copy in 128 steps, not one in each.
    assert len(places) <= 6


def test_groups_end_after_a_dense_branch_and_begin_with_an_lstm() -> None:
    blocks = list(stack("af gf lf a lf gs").blocks)
    cuts = [(group.start, group.stop) for group in grouped(blocks)]
    assert cuts == [(0, 2), (2, 4), (4, 6), (6, 7), (7, 9), (9, 11)]


@pytest.mark.parametrize("letter", BRANCHES)
def test_a_branch_starts_by_adding_little(letter: str) -> None:
    torch.manual_seed(0)
    block = stack(letter, dim=64, head_dim=32, ff_dim=64)._at(0).eval()
    hidden = torch.randn(1, 5, 64)
    delta, _ = block(hidden, block.initial_state(1, hidden))
    # Of the stream's length; nothing where the last matrix starts at zero.
    bound = {"a": 0.0, "f": 0.0, "i": 0.0, "b": 0.8}.get(letter, 0.3)
    assert delta.norm() <= bound * hidden.norm()


def test_after_every_branch_the_stream_is_weighed_and_reminded_of_the_embedding() -> None:
    torch.manual_seed(0)
    # Of three groups, two are led by an LSTM.
    model = stack("l f a l").double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    tokens, state = torch.randint(0, 9, (2, 12)), model.initial_state(2)
    first = hidden = F.rms_norm(model.embedding(tokens), (8,))
    for place, block in enumerate(model.blocks):
        delta, _ = block(hidden, select_prefix(state, f"blocks.{place}"))
        hidden = model.keep[place] * (hidden + delta) + model.remind[place] * first
    torch.testing.assert_close(model(tokens, state).hidden_BTD, F.rms_norm(hidden, (8,)))


def test_a_share_is_not_rounded_to_the_precision_of_the_stream() -> None:
    shares = torch.tensor([[1.003], [0.0]])
    hidden = torch.full((1, 1, 4), 100.0, dtype=torch.bfloat16)
    out = blend(Residual(hidden, hidden, shares), hidden, 0)
    assert out.dtype == torch.bfloat16
    assert out.float().mean() > 100.1


def test_foretelling_is_an_exercise_that_ends_with_the_training() -> None:
    model = stack("f", mtp=2, mtp_weight=0.5)
    tokens, state = torch.zeros(1, 10, dtype=torch.int64), model.initial_state(1)
    full = model(tokens, state).penalty.item()
    assert full == pytest.approx(0.5 * 1.5 * math.log(9), rel=1e-5)
    model.before_step(30, 0.75)
    assert model(tokens, state).penalty.item() == pytest.approx(full / 4, rel=1e-5)
    assert model.eval()(tokens, state).penalty == 0
    assert cost(model).parameters_deployed == sum(p.numel() for p in stack("f").parameters())


def test_spans_are_told_by_layer_and_head() -> None:
    model = stack("f a", span_limit=64, span_starts=(10.0, 20.0), ramp=4)
    windows = head_windows(model.telemetry())
    assert {place: round(window) for place, window in windows.items()} == {(1, 0): 14, (1, 1): 24}


def test_the_price_list_follows_what_was_learnt() -> None:
    model = stack("a", span_limit=4096, span_starts=(2000.0,))
    before = cost(model)
    with torch.no_grad():
        model.blocks[0].log_span.fill_(1.0)
    after = cost(model)
    assert after.flops_per_token < before.flops_per_token / 10
    assert after.state_bytes < before.state_bytes / 5


def test_what_is_said_of_attention_reaches_it() -> None:
    plain, told = stack("a").blocks[0], stack("a", key_shift=True, rotary_fraction=0.0).blocks[0]
    assert "key" in told.initial_state(1, torch.zeros(1))
    assert "key" not in plain.initial_state(1, torch.zeros(1))
    assert told.attend.rotary.sine_PF.abs().max() == 0
    assert plain.attend.rotary.sine_PF.abs().max() > 0.9


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"ngrams": (2, 2)}, "rise"),
        ({"ngrams": (1,)}, "rise"),
        ({"ngrams": (2,), "ngram_rows": 0}, "power of two"),
        ({"span_limit": 1 << 15}, "below"),
        ({"dropout": 1.0}, "below 1"),
        ({"rotary_fraction": 1.5}, "rotary_fraction must be between 0 and 1"),
        ({"rotary_fraction": float("nan")}, "rotary_fraction must be between 0 and 1"),
    ],
)
def test_settings_that_cannot_be_built_are_refused(settings: dict, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        StackConfig(**(SMALL | settings))


def test_memory_follows_the_longest_span() -> None:
    model = stack("af", span_limit=4096, span_starts=(10.0, 700.0))
    before = model.initial_state(1)
    assert before["blocks.0.entries"].size(1) == 768
    block = model._at(0)
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
    [("af af af", 1), ("gf af gf a gf", 3), ("lf a lf a f", 3 + 2)],
)
def test_one_piece_of_code_serves_all_groups_of_a_kind_for_ever(
    pattern: str, kinds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = stack(pattern, dim=32, head_dim=16, span_limit=4096, span_starts=(20.0, 230.0))
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
    """As the tiny one, with heads as wide as the kernel asks for."""
    torch.manual_seed(7)
    return Stack(replace(CONFIGS[name][1], head_dim=16))


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
