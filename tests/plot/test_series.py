"""Curves and events, as read from journals."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import sparing
from sparing.errors import UserError
from sparing.plot.series import (
    Event,
    Series,
    bytes_per_token,
    events,
    origin,
    read_journals,
    series,
    short_names,
    step_to_x,
)

MakeRun = Callable[..., Path]


def test_curves_hold_the_numbers_of_the_journal_in_its_order(make_run: MakeRun) -> None:
    (journal,) = read_journals([make_run()])
    steps = [10, 20, 30, 40, 50, 60]
    assert series(journal, "train", "bits_per_byte", "steps") == Series(
        steps, [8 / s for s in steps]
    )
    assert series(journal, "valid", "bits_per_byte", "steps") == Series([30, 65], [0.5, 0.3])
    assert series(journal, "train", "grad_norm", "steps").y == [1 / s for s in steps]
    assert series(journal, "train", "no such field", "steps") == Series([], [])


def test_bytes_and_minutes_come_from_the_entries(make_run: MakeRun) -> None:
    (journal,) = read_journals([make_run()])
    assert bytes_per_token(journal) == pytest.approx(2)
    in_bytes = series(journal, "train", "lr", "bytes")
    assert in_bytes.x == pytest.approx([2000, 4000, 6000, 8000, 10000, 12000])
    in_minutes = series(journal, "train", "lr", "minutes")
    assert in_minutes.x == pytest.approx([1, 2, 3, 4, 5, 6])


def test_entries_without_bytes_lie_between_their_neighbours_and_after_the_last(
    make_run: MakeRun,
) -> None:
    (journal,) = read_journals([make_run()])
    assert series(journal, "valid", "bits_per_byte", "minutes").x == pytest.approx([3, 6.5])
    assert [event.x for event in events(journal, "minutes")] == pytest.approx([2.5, 2.6, 2.6])
    assert step_to_x(journal, "bytes")(5) == pytest.approx(1000)


def test_events_keep_their_step_and_text(make_run: MakeRun) -> None:
    (journal,) = read_journals([make_run()])
    assert events(journal, "steps")[2] == Event(26, 26, "went back to the weights of step 20")


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_what_is_not_a_finite_number_is_a_gap(make_run: MakeRun, value: object) -> None:
    entries = [{"kind": "train", "step": 1, "lr": value}, {"kind": "train", "step": 2, "lr": 0.5}]
    found = series(read_journals([make_run(entries=entries)])[0], "train", "lr", "steps")
    assert found.x == [1, 2]
    assert math.isnan(found.y[0])
    assert found.y[1] == 0.5


def test_a_run_with_a_valid_entry_alone_has_a_place_on_every_axis(make_run: MakeRun) -> None:
    entry = {"kind": "valid", "step": 4, "tokens": 40, "elapsed_s": 30.0}
    loss = {"bits_per_byte": 1.0, "nats_per_token": math.log(2)}
    (journal,) = read_journals([make_run(entries=[entry | loss])])
    assert series(journal, "valid", "bits_per_byte", "bytes").x == pytest.approx([40])
    assert series(journal, "valid", "bits_per_byte", "minutes").x == pytest.approx([0.5])


def test_a_journal_without_a_finite_loss_cannot_be_drawn_against_bytes(make_run: MakeRun) -> None:
    entries = [{"kind": "train", "step": 1, "tokens": 10, "bits_per_byte": None}]
    (journal,) = read_journals([make_run(entries=entries)])
    with pytest.raises(UserError, match="does not record bytes; use --x steps"):
        series(journal, "train", "lr", "bytes")


def test_a_line_cut_by_a_kill_is_left_out(make_run: MakeRun) -> None:
    run = make_run()
    whole = read_journals([run])[0].entries
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"kind": "train", "st')
    assert read_journals([run])[0].entries == whole


def test_names_are_as_short_as_they_can_be_and_differ() -> None:
    assert short_names([Path("/x/a/run"), Path("/x/b/run")]) == ["a/run", "b/run"]
    assert short_names([Path("/x/a/one"), Path("/x/a/two")]) == ["one", "two"]
    assert short_names([Path("/x/run"), Path("/run")]) == ["x/run", "/run"]
    assert short_names([Path("/x/a/seed1")]) == ["a/seed1"]
    assert short_names([Path("/x/a/seed1"), Path("/x/a/seed2")]) == ["a/seed1", "a/seed2"]
    assert short_names([Path("/x/a/seed1"), Path("/y/a/seed1")]) == ["x/a/seed1", "y/a/seed1"]
    assert short_names([Path("/x/seeds"), Path("/seed1")]) == ["x/seeds", "/seed1"]
    with pytest.raises(UserError, match="named twice"):
        short_names([Path("/x/a"), Path("/x/b/../a")])


def test_the_origin_names_run_commit_and_device(make_run: MakeRun) -> None:
    run = make_run()
    assert origin(run) == f"{run} · commit c0ffee123456 · abacus"
    (run / "provenance.json").write_text(json.dumps({"commit": None}))
    assert origin(run) == f"{run} · commit unknown"
    (run / "provenance.json").unlink()
    assert origin(run) == f"{run} · commit unknown"


def test_bad_journals_are_refused_by_name(make_run: MakeRun, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="at least one run"):
        read_journals([])
    with pytest.raises(UserError, match=r"metrics\.jsonl is empty"):
        read_journals([make_run("empty", [])])
    with pytest.raises(UserError, match=r"metrics\.jsonl is missing"):
        read_journals([tmp_path / "nowhere"])
    entries = [{"kind": "train", "step": 1}, {"kind": "train", "step": "two"}]
    with pytest.raises(UserError, match="line 2 is damaged: step must be a whole number"):
        read_journals([make_run("odd", entries)])


def test_curves_need_no_torch() -> None:
    script = "import sys, sparing.plot.curves; sys.exit('torch' in sys.modules)"
    env = {**os.environ, "PYTHONPATH": str(Path(sparing.__file__).parents[1])}
    assert subprocess.run([sys.executable, "-c", script], env=env).returncode == 0
