"""How large a model may be that a CPU has to run, as in benchmarks."""

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, kw_only=True, slots=True)
class SizeLimit:
    """Upper bounds of a small model. Nothing is ever enlarged."""

    dim: int
    """Width of the recurrent layers, or else of the residual stream."""
    depth: int = 2
    """Layers of a Transformer, and blocks of each kind in a stack."""
    memory: int = 512
    """Positions carried from earlier segments, and persistent vectors."""
    vocab_size: int = 40_000

    def scale(self, dim: int) -> Fraction:
        """The factor for all widths of a model that is `dim` wide."""
        return Fraction(min(dim, self.dim), dim)

    def cut(self, cutoffs: tuple[int, ...]) -> tuple[int, ...]:
        """The cutoffs that lie within the smaller vocabulary."""
        return tuple(cutoff for cutoff in cutoffs if cutoff < self.vocab_size)


def scale_width(width: int, scale: Fraction) -> int:
    """`width` times `scale`, rounded down, but at least 1."""
    return max(1, int(width * scale))
