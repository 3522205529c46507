from dataclasses import replace

import pytest
import torch
from tests.bench.small import CPU, small_run
from torch.utils.flop_counter import FlopCounterMode

from sparing.bench.bare import Load, bare_tasks
from sparing.bench.timing import Task
from sparing.models.sha_rnn.config import SHARNNConfig

B, T, D, F, V, DEPTH = 4, 6, 8, 16, 205, 2
LOAD = Load(B, T, CPU)


def flops(task: Task) -> int:
    with FlopCounterMode(display=False) as counter:
        task()
    return counter.get_total_flops()


def config(**changes: object) -> SHARNNConfig:
    model = small_run().model
    assert isinstance(model, SHARNNConfig)
    return replace(model, **changes)  # type: ignore[arg-type]  # any field


@pytest.mark.parametrize("memory", [20, 6, 3])
def test_the_products_are_those_of_a_step_and_no_more(memory: int) -> None:
    tasks, keys = bare_tasks("sha_rnn", config(memory=memory), LOAD), max(memory, T)
    # Forward, and a gradient for each of the two factors.
    assert flops(tasks["boom"]) == 3 * 2 * B * T * D * F * DEPTH
    assert flops(tasks["softmax"]) == 3 * 2 * B * T * D * V
    # Two products over all keys each way, and gradients of the segment's own keys and values.
    mixing = 2 * B * T * D * (4 * keys + 2 * T)
    assert flops(tasks["attention"]) == 3 * 2 * B * T * D * D + mixing


def test_every_attending_layer_counts() -> None:
    one = bare_tasks("sha_rnn", config(attention_at=(1,)), LOAD)["attention"]
    two = bare_tasks("sha_rnn", config(attention_at=(0, 1)), LOAD)["attention"]
    assert flops(two) == 2 * flops(one)


@pytest.mark.parametrize("changes", [{"memory": 0}, {"attention_at": ()}])
def test_no_attention_is_no_work(changes: dict[str, object]) -> None:
    tasks = bare_tasks("sha_rnn", config(**changes), LOAD)
    assert tasks.keys() == {"recurrent", "boom", "softmax"}


@pytest.mark.parametrize("core", ["lstm", "gru", "qrnn"])
def test_the_recurrent_part_is_the_models_own_core_both_ways(
    core: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted: list[int] = []
    grad = torch.autograd.grad

    def spy(outputs: object, inputs: list[torch.Tensor], gradient: object) -> object:
        wanted.append(len(inputs))
        return grad(outputs, inputs, gradient)  # type: ignore[arg-type]  # passed on as given

    monkeypatch.setattr(torch.autograd, "grad", spy)
    bare_tasks("sha_rnn", config(core=core), LOAD)["recurrent"]()
    # The input, and two matrices with two biases; a QRNN has one of each.
    assert wanted == [3 if core == "qrnn" else 5] * DEPTH


def test_an_unknown_family_has_no_bare_work() -> None:
    assert bare_tasks("brand_new", config(), LOAD) == {}
