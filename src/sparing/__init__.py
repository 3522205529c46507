"""Language models that spend attention sparingly.

`sparing.load()` gives a trained model; docs/python.md shows what can be done with it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparing.lm import LM as LM
    from sparing.lm import load as load

__version__ = "0.1.0"
__all__ = ["LM", "__version__", "load"]

_HOMES = {"LM": "sparing.lm", "load": "sparing.lm"}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: torch takes seconds to import."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'sparing' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
