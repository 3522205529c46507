"""The one exception a user may see: a sentence that says what is wrong and what to do."""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(Exception):
    """Bad input. The command line prints it as one line and exits with status 2."""


class LostError(UserError):
    """Another process of a training is gone, or does not answer in time."""


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """An error for a name that does not exist, suggesting the nearest that does."""
    choices = sorted(known)
    near = get_close_matches(name, choices, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(choices)}"
    return UserError(f"unknown {kind} {name!r}; {hint}")
