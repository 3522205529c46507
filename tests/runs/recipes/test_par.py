"""The recipes of PAR: the original's settings, the size of what is retrained, equal depth."""

from dataclasses import replace

import pytest

from sparing.models.cost import cost
from sparing.models.supernet.config import SupernetConfig
from sparing.runs.build import build_model
from sparing.runs.recipes import expectation, recipe


def test_the_original_s_search_has_the_original_s_settings() -> None:
    run = recipe("wikitext2_par_search")
    m, s = run.model, run.model.search
    assert (m.dim, m.relative.heads, m.relative.head_dim, m.relative.memory) == (128, 4, 32, 16)
    assert (m.feedforward.dim, m.feedforward.activation) == (1024, "relu")
    assert (m.letters, s.candidates, s.sampling) == ("xfxfxf", "xfi", "soft")
    assert (s.tau_start, s.tau_end, s.weights_only, s.turn, m.dropout) == (1.0, 0.1, 0.0, 0, 0.1)
    assert (m.vocab_size, m.cutoffs, m.shrink, m.tied) == (12_000, (250, 2500), 4, False)
    assert (run.train.batch, run.train.segment, run.train.epochs) == (32, 32, 20)
    assert (run.optim.name, run.optim.lr, run.schedule.warmup) == ("adam", 1e-4, 4000)
    assert (run.data.corpus, run.data.vocab) == ("wikitext-2", "par-pieces")
    # The original has 3.81M; norms and biases differ here.
    parameters = cost(build_model(run, "meta")).parameters_training
    assert parameters == pytest.approx(3.81e6, rel=0.01)
    assert "39.41" in expectation("wikitext2_par_search")


@pytest.mark.parametrize("pattern", ["xfxfxf", "xxxxxx", "ffffff"])
def test_what_is_retrained_has_at_most_four_million_parameters(pattern: str) -> None:
    run = recipe("wikitext2_par")
    run = replace(run, model=replace(run.model, pattern=pattern))
    assert cost(build_model(run, "meta")).parameters_training <= 4_000_000
    assert run.train.minutes <= 5


def test_the_rules_stand_beside_their_baseline_with_all_else_equal() -> None:
    base, search = recipe("enwik8_interleaved"), recipe("enwik8_par_search")
    assert isinstance(search.model, SupernetConfig)
    assert search.model.pattern == base.model.pattern == "xf" * 6
    assert search.model.plain_stack() == base.model
    patterns = {}
    for name in ("enwik8_par", "enwik8_sandwich", "enwik8_sha_layout"):
        run = recipe(name)
        patterns[name] = run.model.pattern
        assert (run.train, run.optim, run.schedule) == (base.train, base.optim, base.schedule)
    assert patterns["enwik8_par"] == "xfffffxfffff"
    assert patterns["enwik8_sandwich"] == "xxxfxfxfxfff"
    assert patterns["enwik8_sha_layout"] == "lblblsblb"
