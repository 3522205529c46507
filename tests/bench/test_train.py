from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.bench.small import CPU, small_run, small_stack
from tests.training.toy import Shelf, callbacks

from sparing.bench import train as bench
from sparing.bench.bare import PRODUCTS
from sparing.bench.train import Stepper, bench_train
from sparing.errors import UserError
from sparing.training.loop import fit


def test_a_step_is_the_step_of_the_loop(tmp_path: Path) -> None:
    run, steps = small_run(), 5
    benched, trained = Stepper(run, CPU), Stepper(run, CPU)
    assert steps < bench.ROUND
    torch.manual_seed(3)
    assert all(benched() for _ in range(steps))
    torch.manual_seed(3)
    config = replace(run.train, steps=steps, epochs=None)
    fit(trained.training, config, run.schedule, callbacks(tmp_path, Shelf()))
    both = zip(
        benched.training.model.named_parameters(),
        trained.training.model.named_parameters(),
        strict=True,
    )
    for (name, ours), (_, theirs) in both:
        assert torch.equal(ours, theirs), name
    for name, tensor in trained.training.state.items():
        assert torch.equal(benched.training.state[name], tensor)


def test_memory_is_full_before_the_clock_starts_and_stays_so() -> None:
    stepper = Stepper(small_run("model.memory=50"), CPU)
    stepper.skipped = 3
    stepper.warm_up()
    assert stepper.skipped == 0
    for _ in range(bench.ROUND + 1):
        assert stepper.training.state["blocks.1.memory"].size(1) == 50
        stepper()


def test_a_memory_that_never_grows_is_filled_as_well() -> None:
    stepper = Stepper(small_stack("a"), CPU)
    stepper.warm_up()
    state = stepper.training.state
    assert state["blocks.0.entries"].size(1) > bench.WARMUP * 6
    assert (state["blocks.0.seen"] >= state["blocks.0.entries"].size(1)).all()


def test_the_report_is_complete() -> None:
    figures = bench_train(small_run(), CPU, 4)
    assert figures["steps"] == 6
    assert figures["skipped_steps"] == 0
    assert figures["bare_parts_s"].keys() == {"recurrent", "boom", "attention", "softmax"}
    step_s, bare_s = figures["step_s"], figures["bare_s"]
    for times in (step_s, bare_s):
        assert 0 < times["least"] <= times["lower"] <= times["median"] <= times["upper"]
    assert figures["ratio"] == step_s["median"] / bare_s["median"]
    assert figures["ratio_of_least"] == step_s["least"] / bare_s["least"]
    assert figures["bytes_per_s"] == figures["tokens_per_s"] == 4 * 6 / step_s["median"]
    assert figures["peak_bytes"] > figures["state_bytes"] == 4 * 4 * 8 * (2 * 2 + 20)


def test_the_products_are_timed_per_micro_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[int] = []

    def products(config: object, load: object) -> dict[str, object]:
        batch = load.batch  # type: ignore[attr-defined]  # a Load
        return {"counted": lambda: calls.append(batch)}

    monkeypatch.setitem(PRODUCTS, "sha_rnn", products)  # type: ignore[arg-type]  # a dict
    bench_train(small_run("train.micro_batches=2"), CPU, 1)
    assert set(calls) == {2}
    assert len(calls) == 2 * (1 + bench.LAPS)


def test_a_family_without_products_is_timed_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(PRODUCTS, "sha_rnn")  # type: ignore[arg-type]  # a dict
    figures = bench_train(small_run(), CPU, 1)
    assert figures["step_s"]["median"] > 0
    assert not {"bare_s", "bare_parts_s", "ratio"} & figures.keys()


def test_a_loss_that_is_never_finite_is_an_error() -> None:
    stepper = Stepper(small_run(), CPU)
    with torch.no_grad():
        stepper.training.model.get_parameter("embedding.weight").fill_(torch.inf)
    with pytest.raises(UserError, match="not finite in 40 steps"):
        stepper.warm_up()


def test_no_steps_are_refused() -> None:
    with pytest.raises(UserError, match="steps must be at least 1, not 0"):
        bench_train(small_run(), CPU, 0)
