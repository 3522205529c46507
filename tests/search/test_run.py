"""The text log of a search."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.search.copying import NEEDED
from tests.search.copying import search as planted
from tests.search.small import searched_run, small_search

from sparing.device import Hardware
from sparing.errors import UserError
from sparing.runs.recipes import recipe
from sparing.runs.train import TrainOptions
from sparing.search import run as searches
from sparing.search.derive import supernet_run
from sparing.search.run import Budget, add_budget, lines, search, write_log

TRAIN = {
    "kind": "train", "step": 100, "epoch": 0.5, "nats_per_token": 2.0, "tau": 0.5, "entropy": 0.7,
    "lr": 1e-4, "pi.0.x": 0.75, "pi.0.f": 0.25, "pi.1.x": 0.125, "pi.1.f": 0.875,
}  # fmt: skip
VALID = {
    "kind": "valid", "step": 100, "nats_per_token": 1.5, "perplexity_per_token": 4.48,
    "bits_per_byte": 2.164,
}  # fmt: skip
EVENT = {"kind": "event", "step": 101, "what": "loss is not finite; step skipped"}


def test_it_lists_settings_losses_and_preferences(tmp_path: Path) -> None:
    folder = searched_run(tmp_path / "run", "xfxf")
    folder.metrics.write_text("".join(json.dumps(e) + "\n" for e in (TRAIN, VALID, EVENT)))
    said = list(lines(folder))
    assert "model.search.candidates = xfi" in said
    assert "step 100  epoch 0.50  loss 2.0000  perplexity 7.39  tau 0.500" in "\n".join(said)
    assert "    Transformer-XL attention  0.75 0.12" in said
    assert "4.48 per token  2.1640 bits per byte" in said[-2]
    assert said[-1] == "step 101: loss is not finite; step skipped"
    write_log(folder)
    assert (folder.path / "search.log").read_text().splitlines() == said


@pytest.mark.parametrize("entry", [TRAIN | {"tau": "warm"}, VALID | {"bits_per_byte": [1]}])
def test_a_garbled_journal_is_refused_by_line(entry: dict[str, object], tmp_path: Path) -> None:
    folder = searched_run(tmp_path / "run", "xfxf")
    folder.metrics.write_text(f"{json.dumps(EVENT)}\n{json.dumps(entry)}\n")
    with pytest.raises(UserError, match=r"metrics\.jsonl line 2 is damaged: .* must be a number"):
        list(lines(folder))
    folder.metrics.write_text('{"kind": "train", "step": 1}\n{"kind": "valid", "step": 2}\n')
    assert list(lines(folder))[-1].startswith("step 2  valid  loss -  perplexity -")


def test_a_folder_in_the_place_of_the_log_is_refused_before_the_search(tmp_path: Path) -> None:
    (tmp_path / "search.log").mkdir()
    with pytest.raises(UserError, match=r"search\.log is a folder"):
        search(small_search(), tmp_path, TrainOptions())
    assert [path.name for path in tmp_path.iterdir()] == ["search.log"]


CPU = Hardware(torch.device("cpu"), "float32")


def test_it_finds_the_one_block_that_needs_attention(tmp_path: Path) -> None:
    assert planted(tmp_path, seed=0) == NEEDED


@pytest.mark.soak
def test_it_finds_it_with_at_least_four_seeds_of_five(tmp_path: Path) -> None:
    found = []
    for seed in range(5):
        (tmp_path / str(seed)).mkdir()
        found.append(planted(tmp_path / str(seed), seed))
    assert found.count(NEEDED) >= 4, found


def test_costs_are_counted_in_the_currency_asked_for() -> None:
    run = add_budget(small_search(), Budget(share=0.9, currency="parameters"), CPU)
    s = run.model.search
    assert s.budget == 0.9
    assert s.costs[2] == 0
    assert min(s.costs[:2]) > 100
    limit = 0.9 * (s.fixed_cost + 2 * sum(s.costs)) - s.fixed_cost
    assert run.model.cost_limit == pytest.approx(limit)


def test_a_budget_below_everything_but_the_blocks_is_refused_with_the_costs() -> None:
    with pytest.raises(UserError, match="before any block") as said:
        add_budget(small_search(), Budget(share=0.1, currency="parameters"), CPU)
    assert "\n" not in str(said.value)


def test_a_recipe_that_is_no_search_is_refused() -> None:
    with pytest.raises(UserError, match="not a search"):
        supernet_run(recipe("quickstart"))


def never(*_: object, **__: object) -> None:
    raise AssertionError("nothing may be read, measured or written")


@pytest.mark.parametrize(
    ("processes", "split", "complaint"),
    [("2", 1, "by one process"), ("1", 4, "train.micro_batches")],
)
def test_what_cannot_be_searched_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: str, split: int, complaint: str
) -> None:
    for name in ("prepare", "add_budget", "train"):
        monkeypatch.setattr(searches, name, never)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", processes)
    run = small_search("model.search.turn=2")
    run = replace(run, train=replace(run.train, micro_batches=split))
    with pytest.raises(UserError, match=complaint) as said:
        search(run, tmp_path / "run", TrainOptions(device="cpu", progress=False), Budget(share=0.9))
    assert "\n" not in str(said.value)
    assert not (tmp_path / "run").exists()
