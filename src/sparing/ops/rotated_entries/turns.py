"""The angles of a rotation."""

from typing import NamedTuple

from torch import Tensor


class Turns(NamedTuple):
    """Cosines and sines of the angles at every position, after which they begin again."""

    cosine_PF: Tensor
    sine_PF: Tensor
