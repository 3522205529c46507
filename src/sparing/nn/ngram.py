"""Embeddings of the last few tokens together, from hashed tables (as in arXiv:2412.09871).

Axes: B batch, T segment, N longest n-gram - 1, E width of a table, D dim.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sparing.nn.linear import Linear

MULTIPLIER = 0x9E3779B1
"""Knuth's multiplicative hash; odd, so that no bit of a token is lost."""

NONE = -1
"""A token that occurs in no text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NgramConfig:
    """Settings of the n-gram embedding."""

    lengths: tuple[int, ...] = ()
    """Lengths of the n-grams that have vectors, from 2 on; none: single tokens alone."""
    rows: int = 32768
    """Rows of the table for each length, a power of two."""
    dim: int = 64
    """Width of the tables."""

    def __post_init__(self) -> None:
        if self.lengths:
            check_ngrams(self.lengths, self.rows, self.dim)


class NgramEmbedding(nn.Module):
    """The sum of a vector for the last 2 tokens, one for the last 3 and so on, projected to `dim`.

    Equal n-grams share a row, and so do different ones with the same hash. With fewer rows than
    n-grams in the text that is common, and the blocks above have to tell them apart.
    """

    def __init__(self, dim: int, *, lengths: tuple[int, ...], rows: int, width: int) -> None:
        super().__init__()
        check_ngrams(lengths, rows, width)
        self.lengths, self.rows = lengths, rows
        self.history = max(lengths) - 1
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in lengths)
        self.project = Linear(len(lengths) * width, dim, bias=False)
        self.find = self._rows
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise with small rows, so that the token's own embedding dominates."""
        for table in self.tables:
            assert isinstance(table, nn.Embedding)
            nn.init.normal_(table.weight, std=0.02)
        nn.init.normal_(self.project.weight, std=self.project.in_features**-0.5)

    def forward(self, tokens_BT: Tensor, before_BN: Tensor) -> tuple[Tensor, Tensor]:
        """Return vectors (B, T, D), and the tokens that the next segment needs."""
        known_BS = torch.cat([before_BN, tokens_BT], dim=1)
        rows = self.find(known_BS)
        found = [table(row_BT) for table, row_BT in zip(self.tables, rows, strict=True)]
        after_BN = known_BS[:, known_BS.size(1) - self.history :]
        return self.project(torch.cat(found, dim=-1)), after_BN

    def before(self, batch: int, like: Tensor) -> Tensor:
        """Return the tokens before a text: ones that occur in no text."""
        return torch.full((batch, self.history), NONE, device=like.device, dtype=torch.int64)

    def reset_lanes(self, before_BN: Tensor, lanes_B: Tensor) -> Tensor:
        """Return the same with nothing before the next token of the selected lanes."""
        return before_BN.masked_fill(lanes_B[:, None], NONE)

    def compile_parts(self) -> None:
        """Compile the hash: dozens of small operations that take longer to launch than to run."""
        self.find = torch.compile(self._rows)

    def _rows(self, known_BS: Tensor) -> list[Tensor]:
        """Return the row of each n-gram that ends at each position.

        Lengths are read from the module: as arguments, compiled code would treat them as dynamic
        numbers, and `in` would not find them.
        """
        segment = known_BS.size(1) - self.history
        hash_BT, found = known_BS.new_zeros(known_BS.size(0), segment), []
        for back in range(max(self.lengths)):
            token_BT = known_BS[:, self.history - back : self.history - back + segment]
            hash_BT = (hash_BT + token_BT + 1) * MULTIPLIER & 0xFFFFFFFF
            hash_BT = hash_BT ^ (hash_BT >> 15)
            if back + 1 in self.lengths:
                found.append(hash_BT % self.rows)
        return found


def check_ngrams(lengths: tuple[int, ...], rows: int, width: int) -> None:
    """Raise `ValueError` for settings that no table can have."""
    if rows < 1 or rows & (rows - 1):
        raise ValueError(f"rows of n-grams must be a power of two, not {rows}")
    if min(lengths) < 2 or list(lengths) != sorted(set(lengths)):
        raise ValueError(f"lengths of n-grams must rise from at least 2, not {lengths}")
    if width < 1:
        raise ValueError(f"tables of n-grams must be at least 1 wide, not {width}")
