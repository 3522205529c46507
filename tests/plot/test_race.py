"""The picture of bits per byte against time."""

import json
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from sparing.data.tokens import DataConfig
from sparing.data.vocab import ByteVocab
from sparing.errors import UserError
from sparing.models.sha_rnn.config import SHARNNConfig
from sparing.plot.figure import save_figure
from sparing.plot.published import PUBLISHED
from sparing.plot.race import draw_race, read_race_entries
from sparing.runs.config import RunConfig
from sparing.runs.folder import create
from sparing.training.config import TrainConfig


def measured(bits: float | None, step: int) -> dict[str, Any]:
    return {"bits_per_byte": bits, "bytes": 5000, "protocol": "bytes", "how": "", "step": step}


def make_run(
    path: Path,
    bits: float = 1.1,
    *,
    recipe: str = "own",
    corpus: str = "enwik8",
    minutes: float = 20,
    test: float | None = None,
) -> Path:
    """A run of ten steps whose valid loss ends at `bits`."""
    run = RunConfig(
        recipe=recipe,
        family="sha_rnn",
        model=SHARNNConfig(vocab_size=256, dim=8, depth=1, boom_dim=8, attention_at=()),
        data=DataConfig(corpus=corpus),
        train=TrainConfig(steps=10),
    )
    folder = create(path, run, ByteVocab(), {"commit": "c0ffee", "device": "NVIDIA H200"})
    entries = [
        {"kind": "valid", **measured(bits + (10 - step) / 3, step), "elapsed_s": 6 * minutes * step}
        for step in range(1, 11)
    ]
    folder.metrics.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    if test is not None:
        folder.write("results", {"test": measured(test, 5)})
    return folder.path


def test_a_run_ends_in_its_results(tmp_path: Path) -> None:
    (entry,) = read_race_entries([make_run(tmp_path / "a", 1.0625, test=1.0312)])
    assert entry.curve.x == pytest.approx([2.0 * step for step in range(1, 11)])
    assert entry.curve.y[-1] == 1.0625
    # The test was of the weights of step five.
    assert entry.end == pytest.approx((10, 1.0312))
    assert entry.label == "own, 10 min\n1.0312 test, 1.0625 valid"
    (entry,) = read_race_entries([make_run(tmp_path / "b", 1.0625)])
    assert entry.end == pytest.approx((20, 1.0625))
    assert entry.label == "own, 20 min\n1.0625 valid"


def test_runs_are_named_by_their_recipes_or_else_by_their_folders(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name, recipe=name) for name in ("a", "b")]
    assert [entry.name for entry in read_race_entries(runs)] == ["a", "b"]
    runs = [make_run(tmp_path / "c" / seed, recipe="c") for seed in ("seed1", "seed2")]
    assert [entry.name for entry in read_race_entries(runs)] == ["c/seed1", "c/seed2"]


def crowd(tmp_path: Path, minutes: float) -> list[Path]:
    """Six runs that end nearly together."""
    figures = (1.005, 1.006, 1.02, 1.05, 1.07, 1.17)
    return [
        make_run(
            tmp_path / f"enwik8_20min_{at}",
            bits + 0.02,
            recipe=f"enwik8_20min_{at}",
            minutes=minutes if at else 5,
            test=bits,
        )
        for at, bits in enumerate(figures)
    ]


@pytest.mark.parametrize("minutes", [20.0, 600.0])
def test_no_label_lies_on_another_or_on_anything_drawn(tmp_path: Path, minutes: float) -> None:
    from matplotlib.path import Path as Path2D
    from matplotlib.text import Text

    figure = draw_race(crowd(tmp_path, minutes))
    save_figure(figure, tmp_path / "a.png")
    (axes,) = figure.axes
    # Without the thread, which an annotation counts in.
    places = {text.get_text(): Text.get_window_extent(text) for text in axes.texts}
    assert len(places) == 6 + len(PUBLISHED)
    for first, second in combinations(places, 2):
        assert not places[first].overlaps(places[second]), (first, second)
    frame, paper = axes.get_window_extent(), figure.bbox
    assert all(place.x0 >= frame.x0 and place.x1 <= paper.x1 for place in places.values())
    assert all(text.get_bbox_patch() is None for text in axes.texts)
    for line in axes.lines:
        data: Any = line.get_xydata()
        path = Path2D(line.get_transform().transform(data))
        crossed = [name for name, place in places.items() if path.intersects_bbox(place, False)]
        assert not crossed, (crossed, data)
    key = axes.get_legend()
    assert key is not None
    assert not key.get_window_extent().overlaps(frame)


def test_others_are_named_with_time_and_hardware(
    tmp_path: Path, words: Callable[[Any], str]
) -> None:
    figure = draw_race([make_run(tmp_path / "a", recipe="a$b", test=1.0)])
    shown = words(figure)
    for other in PUBLISHED:
        assert f"{other.name}, {other.bits_per_byte:g}" in shown
        assert f"{other.time}, {other.hardware}" in shown
        assert other.reading in shown
    assert "Longformer, 12 layers, 1.00, 41M" in shown
    colours = ("in colour: our runs, NVIDIA H200", "grey: published results")
    for word in ("commit c0ffee", *colours, r"a\$b", "1 week", "test"):
        assert word in shown


def test_the_longest_training_of_others_is_in_the_picture(tmp_path: Path) -> None:
    axes: Any = draw_race([make_run(tmp_path / "a", test=1.0)]).axes[0]
    assert axes.get_xlim()[1] > max(other.minutes[1] for other in PUBLISHED if other.minutes)


def test_the_picture_holds_our_curve_and_the_published_one(tmp_path: Path) -> None:
    axes: Any = draw_race([make_run(tmp_path / "a", 1.1, test=1.08)]).axes[0]
    lines = {tuple(line.get_ydata()): line for line in axes.lines}
    ours = next(line for line in lines.values() if len(line.get_xdata()) == 10)
    assert list(ours.get_xdata()) == pytest.approx([2.0 * step for step in range(1, 11)])
    theirs = next(other for other in PUBLISHED if len(other.valid) > 1)
    assert tuple(bits for _, bits in theirs.valid) in lines
    assert ours.get_color() != lines[tuple(bits for _, bits in theirs.valid)].get_color()
    low, high = axes.get_ylim()
    assert low < min(other.bits_per_byte for other in PUBLISHED)
    assert high >= 1.4
    assert lines[(1.08,)].get_markerfacecolor() == ours.get_color()
    assert lines[(1.1,)].get_markerfacecolor() == "white"


def test_a_bad_run_far_above_the_rest_is_still_in_the_frame(tmp_path: Path) -> None:
    (axes,) = draw_race([make_run(tmp_path / "a", 4.0, minutes=0)]).axes
    assert axes.get_ylim()[1] > 4
    assert axes.get_xlim()[0] > 0


def test_runs_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="race is for enwik8 only"):
        read_race_entries([make_run(tmp_path / "a", corpus="text8")])
    lost = make_run(tmp_path / "b")
    (lost / "metrics.jsonl").write_text(
        json.dumps({"kind": "valid", **measured(None, 1), "elapsed_s": 60.0}) + "\n"
    )
    with pytest.raises(UserError, match="has no valid or test result yet"):
        read_race_entries([lost])
