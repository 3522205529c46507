"""What every model is read in: the mode, restored afterwards, and left alone if it is right."""

import pytest
import torch
from tests.models.tiny import tiny

from sparing.device import Hardware
from sparing.models.api import eval_mode

CPU = Hardware(torch.device("cpu"), "float32")


@pytest.mark.parametrize("training", [True, False])
def test_eval_mode_restores_the_mode_even_after_an_error(training: bool) -> None:
    def interrupted() -> None:
        with eval_mode(model, CPU):
            assert not model.training
            assert not torch.is_grad_enabled()
            raise RuntimeError("stop")

    model = tiny("transformer_xl").train(training)
    with pytest.raises(RuntimeError, match="stop"):
        interrupted()
    assert model.training is training
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("training", [True, False])
def test_a_model_in_eval_mode_keeps_what_it_has_computed(
    training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, projected = tiny("transformer_xl").train(training), list[int]()
    project = model._project  # type: ignore[operator]  # of this family
    monkeypatch.setattr(model, "_project", lambda keys: projected.append(keys) or project(keys))
    for _ in range(2):
        with eval_mode(model, CPU):
            model(torch.zeros(1, 3, dtype=torch.long), model.initial_state(1, inference=True))
    # Weights may have been trained between the two.
    assert len(projected) == (2 if training else 1)
