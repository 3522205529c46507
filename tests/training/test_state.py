"""The loss scale."""

from sparing.training.state import LossScale


def test_the_loss_scale_halves_on_overflow_and_doubles_after_patience() -> None:
    scale = LossScale.for_precision("float16")
    scale.after_step(finite=False)
    assert scale.value == 32768
    for _ in range(2000):
        scale.after_step(finite=True)
    assert scale.value == 65536
    inert = LossScale.for_precision("bfloat16")
    inert.after_step(finite=False)
    assert inert.value == 1
