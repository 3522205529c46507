"""The eight scripts of Adaptive Span and all-attention: sizes to the unit, and their settings."""

from dataclasses import replace

import pytest

from sparing.models.cost import cost
from sparing.runs.build import build_model
from sparing.runs.recipes import expectation, recipe

PUBLISHED = {
    "enwik8_adaptive_span_small": (205, 6_480_621),
    "enwik8_adaptive_span": (205, 38_538_541),
    "text8_adaptive_span": (28, 38_357_116),
    "enwik8_adaptive_span_large": (205, 208_910_221),
    "text8_adaptive_span_large": (28, 208_638_172),
    "enwik8_all_attention_small": (205, 38_501_725),
    "enwik8_all_attention": (205, 114_017_773),
    "wikitext103_all_attention": (267_735, 132_493_746),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_counted_to_the_unit(name: str) -> None:
    vocab_size, parameters = PUBLISHED[name]
    run = recipe(name)
    run = replace(run, model=replace(run.model, vocab_size=vocab_size))
    counted = cost(build_model(run, "meta"))
    assert counted.parameters_training == counted.parameters_deployed == parameters


@pytest.mark.parametrize("name", PUBLISHED)
def test_settings_are_those_of_the_scripts(name: str) -> None:
    run = recipe(name)
    o = run.optim
    if name == "wikitext103_all_attention":
        assert (o.name, o.lr, o.clip, o.betas) == ("adam", 2.5e-4, 1.0, (0.9, 0.999))
    else:
        assert (o.name, o.lr, o.tensor_clip, o.clip) == ("adagrad", 0.07, 0.03, 0.0)
    assert (run.model.ramp, run.model.span_start, run.model.mask) == (32, 0.0, "code")
    assert run.train.batch == 64
    short = name in ("enwik8_adaptive_span_small", "wikitext103_all_attention")
    assert run.train.segment == (256 if short else 512)
    assert run.schedule.warmup == (8000 if short else 32_000)
    assert "Published" in expectation(name)


def test_the_work_of_a_published_model_is_counted_by_the_stated_formula() -> None:
    run = recipe("enwik8_adaptive_span")
    model = build_model(replace(run, model=replace(run.model, depth=2)))
    for block in model.blocks:
        block.span.ratio.data.fill_((314 - 32) / 8192)
    model.refresh()
    d, window = 512, 314
    layer = 4 * d * d + 2 * d * 2048 + 3 * d * window
    assert model.flops_per_token() == 2 * (2 * layer + 205 * d)
