"""Loss scaling for float16: so large that small gradients survive, halved when one overflows."""

from dataclasses import dataclass

PATIENCE = 2000
"""Good steps before the scale is doubled again."""


@dataclass(slots=True)
class LossScale:
    """The factor on the loss; 1 and inert in other precisions."""

    value: float = 1.0
    good_steps: int = 0
    active: bool = False

    @classmethod
    def for_precision(cls, precision: str) -> "LossScale":
        """Start at 2^16 for float16, as is customary."""
        return cls(65536.0, 0, True) if precision == "float16" else cls()

    def after_step(self, *, finite: bool) -> None:
        """Adapt to whether the last gradients were finite."""
        if not self.active:
            return
        if not finite:
            self.value, self.good_steps = self.value / 2, 0
        elif self.good_steps + 1 >= PATIENCE:
            self.value, self.good_steps = self.value * 2, 0
        else:
            self.good_steps += 1

    @property
    def exhausted(self) -> bool:
        """An overflow now is the model's fault, not the scale's."""
        return not self.active or self.value < 1
