"""Causal attention with a bias for each query and distance: a GPU's form of two other ops.

`span_attention` and `relative_attention` have the definitions; this is what they share on a GPU.
"""

from torch import Tensor

__all__ = ["has_tiles"]

SHORTEST = 16
"""Fewest queries that fill a tile."""
WIDEST = 128
"""The widest heads that there are tiles for."""


def has_tiles(keys: Tensor, segment: int) -> bool:
    """Return whether the kernels serve a segment of queries, and keys (..., K) of this kind.

    In 32 bits, products without tensor cores would take longer than they save.
    """
    in_16_bits = keys.element_size() == 2
    return keys.is_cuda and in_16_bits and segment >= SHORTEST and keys.size(-1) <= WIDEST
