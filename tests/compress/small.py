"""A small model that reads bytes, and what compresses with it."""

from tests.evaluation.gru import tiny

from sparing import device
from sparing.compress.compressor import Compressor
from sparing.data.vocab import ByteVocab
from sparing.device import Hardware

CPU: Hardware = device.pick("cpu", "float32")
TEXT = b"the quick brown fox jumps over the lazy dog; " * 12


def small_compressor(memory: int = 0) -> Compressor:
    """Each has a model of its own, with the same weights."""
    return Compressor(tiny(256, memory), ByteVocab(), CPU)
