"""Results of others on enwik8: bits per byte as published, training time and hardware.

Times that were not published are left out. Two entries are not from papers: they are calibration
runs that this project started with.
"""

from collections.abc import Sequence
from dataclasses import dataclass

HOUR = 60.0
DAY = 24 * HOUR


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """A training of others."""

    name: str
    parameters: str
    bits_per_byte: float
    """On the test split, with static weights."""
    minutes: tuple[float, float] | None
    """Least and most training time; equal if one figure is stated, None if none is."""
    time: str
    """The same in words."""
    hardware: str
    source: str
    """Where the figure and the time come from, and what was derived."""
    reading: str = ""
    """How it was measured, unless in carried streams over all bytes."""
    valid: tuple[tuple[float, float], ...] = ()
    """Minutes and bits per byte on the valid split during training."""


def by_epoch(bits: Sequence[float], epoch_s: float) -> tuple[tuple[float, float], ...]:
    """Convert a curve published per epoch to minutes."""
    return tuple((epoch * epoch_s / 60, each) for epoch, each in enumerate(bits, start=1))


SHA_RNN_VALID = (
    *(1.315, 1.241, 1.201, 1.178, 1.165, 1.151, 1.145, 1.137, 1.132, 1.128),
    *(1.124, 1.122, 1.117, 1.116, 1.112, 1.112, 1.112, 1.096, 1.095, 1.096),
)
"""arXiv:1911.11423v2, figure 3, as drawn in the PDF: 20 epochs, learning rate halved late."""

PUBLISHED = (
    Published(
        name="plain GPT (calibration script)",
        parameters="38M",
        bits_per_byte=1.0445,
        minutes=(11.0, 11.0),
        time="11 min",
        hardware="one H200",
        valid=((11.0, 1.0689),),
        source="a plain script's run, one seed, no journal: 12 layers of 512, Muon; last half of "
        "each window scored",
        reading="overlapping windows of 2048",
    ),
    Published(
        name="LSTM + one attention (calibration script)",
        parameters="69M",
        bits_per_byte=1.0991,
        minutes=(7.5, 7.5),
        time="7.5 min",
        hardware="one H200",
        valid=((7.5, 1.1247),),
        source="a plain script's run, one seed, no journal: memory 1024, Muon; 32 carried streams",
    ),
    Published(
        name="SHA-RNN, one attention layer",
        parameters="52M",
        bits_per_byte=1.076,
        minutes=(12.5 * HOUR, 12.5 * HOUR),
        time="12.5 h",
        hardware="one Titan V",
        valid=((12.5 * HOUR, 1.100),),
        source="arXiv:1911.11423v2, table 1; time derived: 25 epochs of 1800 s",
    ),
    Published(
        name="SHA-RNN, four attention layers",
        parameters="54M",
        bits_per_byte=1.068,
        minutes=(20 * 67.0, 20 * 67.0),
        time="22 h",
        hardware="one Titan V",
        valid=by_epoch(SHA_RNN_VALID, 4020),
        source="arXiv:1911.11423v2, table 1 and figure 3; times derived: epochs of 4020 s",
    ),
    Published(
        name="Adaptive Span, 12 layers",
        parameters="39M",
        bits_per_byte=1.02,
        minutes=(2 * DAY, 3 * DAY),
        time="2 to 3 days",
        hardware="8 V100",
        source="arXiv:1905.07799, small models; valid 1.04 without a time",
    ),
    Published(
        name="Adaptive Span, 24 layers",
        parameters="209M",
        bits_per_byte=0.98,
        minutes=(2.4 * DAY, 2.4 * DAY),
        time="under 2.4 days",
        hardware="8 V100",
        source="its README: 170k steps in less than 2.4 days, drawn at that bound",
    ),
    Published(
        name="all-attention, 18 layers",
        parameters="39M",
        bits_per_byte=1.01,
        minutes=None,
        time="time not published",
        hardware="8 GPUs",
        source="arXiv:1907.01470",
    ),
    Published(
        name="Expire-Span, 12 layers",
        parameters="38M",
        bits_per_byte=0.994,
        minutes=None,
        time="time not published",
        hardware="8 GPUs",
        source="the authors' program for arXiv:2105.06548",
        reading="no newlines",
    ),
    Published(
        name="Longformer, 12 layers",
        parameters="41M",
        bits_per_byte=1.00,
        minutes=(16 * DAY, 16 * DAY),
        time="16 days",
        hardware="4 RTX 8000",
        source="arXiv:2004.05150, small model",
    ),
    Published(
        name="AWD-LSTM, 3 layers",
        parameters="47M",
        bits_per_byte=1.232,
        minutes=(2 * DAY, 2 * DAY),
        time="2 days",
        hardware="one GPU",
        source="arXiv:1803.08240, its README",
    ),
    Published(
        name="mLSTM",
        parameters="46M",
        bits_per_byte=1.24,
        minutes=(7 * DAY, 7 * DAY),
        time="about a week",
        hardware="one GTX 1080 Ti",
        source="the authors' program for arXiv:1609.07959",
    ),
    Published(
        name="Transformer-XL, 12 layers",
        parameters="41M",
        bits_per_byte=1.06,
        minutes=None,
        time="time not published",
        hardware="4 GPUs",
        source="arXiv:1901.02860; newlines neither read nor predicted",
        reading="no newlines",
    ),
)
"""Test is the last 5,000,000 bytes."""
