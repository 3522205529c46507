"""The stack: patterns, groups, the bounds of its recipes."""

import pytest
import torch
from tests.models.tiny import CONFIGS, tiny

from sparing.models.api import LanguageModel
from sparing.models.cost import cost
from sparing.models.stack import BRANCHES, Stack, StackConfig, grouped
from sparing.nn.blocks.span import SpanAttention
from sparing.runs.build import build_model
from sparing.runs.recipes import recipe

SMALL = {"vocab_size": 9, "dim": 8, "heads": 2, "head_dim": 4, "ff_dim": 8, "memory": 4}


def stack(pattern: str, **settings: object) -> Stack:
    return Stack(StackConfig(pattern=pattern, **(SMALL | settings)))


@pytest.mark.parametrize("pattern", ["afq", "", "A f"])
def test_a_pattern_of_unknown_letters_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="feed-forward"):
        StackConfig(pattern=pattern, **SMALL)


def test_groups_end_after_a_dense_branch_and_begin_with_a_recurrent_one() -> None:
    blocks = [block for _, block in stack("af af lf a lf s")._numbered()]
    cuts = [(group.start, group.stop) for group in grouped(blocks)]
    assert cuts == [(0, 2), (2, 4), (4, 6), (6, 7), (7, 9), (9, 10)]


def test_every_letter_makes_a_branch_that_starts_close_to_the_identity() -> None:
    for letter in BRANCHES:
        torch.manual_seed(0)
        model = stack(letter).eval()
        hidden = torch.randn(1, 5, 8)
        delta, _ = model._block(0)(hidden, model._block(0).initial_state(1, hidden))
        assert delta.norm() < 1.2 * hidden.norm(), letter


BOUNDS = {"enwik8_20min_span": 40e6, "enwik8_20min_sha": 55e6, "enwik8_small": 8e6}


@pytest.mark.parametrize("name", BOUNDS)
def test_recipes_keep_their_bounds(name: str) -> None:
    model = build_model(recipe(name), "meta")
    assert 0.9 * BOUNDS[name] < cost(model).parameters_deployed <= BOUNDS[name]


def test_sha_has_exactly_one_single_headed_attention() -> None:
    config = recipe("enwik8_20min_sha").model
    assert (config.letters.count("a"), config.heads) == (1, 1)
    assert set(config.letters) == {"l", "f", "a"}


def test_memory_follows_the_longest_span() -> None:
    model = stack("af", span_limit=4096, span_starts=(10.0, 700.0))
    assert model.initial_state(1)["blocks.0.entries"].size(1) == 768
    block = model._block(0)
    assert isinstance(block, SpanAttention)
    with torch.no_grad():
        block.log_span[1] = torch.log1p(torch.tensor(20.0))
    state = model(torch.zeros(1, 900, dtype=torch.int64), model.initial_state(1)).state
    assert state["blocks.0.entries"].size(1) == 256


def compiled_and_plain(name: str) -> tuple[LanguageModel, LanguageModel]:
    one, other = tiny(name).float().cuda(), tiny(name).float().cuda()
    one.compile_parts()
    return one, other


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    "name", [name for name, (family, _) in CONFIGS.items() if family == "stack"]
)
def test_compiled_groups_give_the_same_answer(name: str) -> None:
    tokens = torch.randint(0, 11, (2, 32), generator=torch.Generator().manual_seed(0)).cuda()
    answers = []
    for model in compiled_and_plain(name):
        state = model(tokens, model.initial_state(2)).state
        answers.append(model(tokens, state).hidden_BTD)
    torch.testing.assert_close(*answers, rtol=2e-2, atol=2e-2)
