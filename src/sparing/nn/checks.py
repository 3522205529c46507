"""Checks shared by the settings of blocks and models; each raises a ValueError for the user."""

MAX_MODULES = 1000
"""More modules of one kind than any model needs."""


def check_counts(least: int = 1, **counts: int) -> None:
    """Refuse fewer modules than `least`, and so many that memory runs out after hours."""
    check_at_least(least, **counts)
    for name, value in counts.items():
        if value > MAX_MODULES:
            raise ValueError(f"{name} must be at most {MAX_MODULES:,}, not {value:,}")


def check_at_least(least: float, **values: float) -> None:
    """Refuse values below `least`, and NaN."""
    for name, value in values.items():
        if not value >= least:
            raise ValueError(f"{name} must be at least {least}, not {value}")


def check_rates(**rates: float) -> None:
    """Refuse dropout rates outside [0, 1)."""
    for name, value in rates.items():
        if not 0 <= value < 1:
            raise ValueError(f"{name} must be at least 0 and below 1, not {value}")
