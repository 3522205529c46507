"""What of a model goes into a checkpoint."""

from tests.models.tiny import tiny

from sparing.train.capture import model_tensors


def test_tables_made_from_settings_stay_out() -> None:
    model = tiny("stack")
    names = model_tensors(model).keys()
    assert any("cosine" in name for name, _ in model.named_buffers())
    assert not any("cosine" in name or "sine" in name for name in names)
    assert {name for name, _ in model.named_parameters()} <= names


def test_buffers_that_learn_are_kept() -> None:
    assert {"price", "last_choices", "stable_checks"} <= model_tensors(tiny("supernet")).keys()
