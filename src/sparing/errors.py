"""Exceptions whose message is meant for the user."""

from collections.abc import Iterable
from difflib import get_close_matches

OUT_OF_MEMORY_MESSAGES = (
    "can't allocate memory",
    "Storage size calculation overflowed",
    "out of memory",
    "bad_alloc",
    # The message of oneDNN's LSTM when an allocation fails.
    "could not create a primitive",
)
"""Parts of torch's messages for failed allocations; the exception types are not specific."""


class UserError(Exception):
    """Bad input. The command line prints the message as one line and exits with status 2."""


class LostProcessError(UserError):
    """Another process of a distributed run has ended or does not answer in time."""


def is_out_of_memory(problem: Exception) -> bool:
    """Whether an exception means that an allocation failed."""
    # torch's own type, which is not imported here: torch takes seconds.
    if isinstance(problem, MemoryError) or type(problem).__name__ == "OutOfMemoryError":
        return True
    return any(message in str(problem) for message in OUT_OF_MEMORY_MESSAGES)


def bad_predictions() -> UserError:
    """Return the error for logits of which some are NaN or infinite."""
    return UserError("the model predicts values that are not finite; use another checkpoint")


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UserError:
    """Return an error for a name that does not exist, with the closest name that does."""
    return UserError(f"unknown {kind} {name!r}; {closest_name(name, known)}")


def closest_name(name: str, known: Iterable[str]) -> str:
    """A hint for a name that does not exist: the closest name that does, else all of them."""
    choices = sorted(known)
    near = get_close_matches(name, choices, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(choices)}"


def unknown_setting(path: str, known: Iterable[str]) -> UserError:
    """Return an error for a setting that does not exist, with those of a similar last name."""
    choices = sorted(known)
    lasts = {_last_name(choice) for choice in choices}
    near = get_close_matches(_last_name(path), sorted(lasts), n=1, cutoff=0.6)
    meant = [choice for choice in choices if _last_name(choice) in near]
    if not meant:
        return UserError(f"unknown setting {path!r}; `sparing info RECIPE --config` lists them")
    # One in the group that was named comes first.
    nearest = " or ".join(map(repr, get_close_matches(path, meant, cutoff=0)))
    return UserError(f"unknown setting {path!r}; did you mean {nearest}?")


def _last_name(path: str) -> str:
    return path.rpartition(".")[2]
