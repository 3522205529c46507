"""Conversions between nats, bits per byte and perplexity, and numbers formatted for people."""

import math

IGNORE_INDEX = -1
"""Target of a position without a next token: its loss is zero and it is not counted."""


def bits_per_byte(nats: float, size_bytes: int) -> float:
    """Convert the total nats of a text of `size_bytes` to bits per byte."""
    return nats / math.log(2) / size_bytes


def perplexity(nats: float, count: int) -> float:
    """Exponential of the mean loss over `count` tokens or words; infinite if it overflows."""
    mean = nats / count
    return math.exp(mean) if mean < 700 else math.inf


def pluralize(count: int, noun: str) -> str:
    """1, 'byte' -> '1 byte'; 1500, 'byte' -> '1,500 bytes'; 2, 'process' -> '2 processes'."""
    ending = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count:,} {noun}{ending}"


def format_bytes(size: float) -> str:
    """1536 -> '1.5 KiB'."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def format_duration(minutes: float) -> str:
    """12.34 -> '12.3 min', 750 -> '12.5 h'."""
    for unit, size in (("days", 1440.0), ("h", 60.0), ("min", 1.0)):
        if minutes >= (2 if unit == "days" else 1) * size:
            return f"{minutes / size:.3g} {unit}"
    return f"{minutes * 60:.2g} s"
