"""Limits of small models: proportions stay, nothing grows."""

from fractions import Fraction

from sparing.nn.size import SizeLimit, scale_width


def test_widths_keep_their_proportions_and_never_grow() -> None:
    assert SizeLimit(dim=512).scale(2048) == Fraction(1, 4)
    assert SizeLimit(dim=512).scale(400) == 1
    assert scale_width(400, Fraction(512, 2800)) == 400 * 512 // 2800
    assert scale_width(1, Fraction(1, 8)) == 1


def test_cutoffs_beyond_the_vocabulary_go() -> None:
    assert SizeLimit(dim=1, vocab_size=100).cut((10, 100, 1000)) == (10,)
