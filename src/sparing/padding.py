"""The one word that text and loss share: which targets do not count."""

IGNORED = -1
"""Target of a position without a next token: it costs nothing and is not counted."""
