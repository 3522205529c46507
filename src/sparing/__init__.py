"""Language models that spend attention sparingly.

`sparing.load()` gives a trained model, `sparing.train` makes one; docs/python.md shows the rest.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparing.api import evaluate, load, train
    from sparing.errors import UserError
    from sparing.evaluation.loss import Evaluation
    from sparing.lm import LM
    from sparing.models.sha_rnn.config import SHARNNConfig
    from sparing.models.sha_rnn.model import SHARNN
    from sparing.models.stack.config import StackConfig
    from sparing.models.stack.model import Stack
    from sparing.nn.attention.span import AdaptiveSpan

__version__ = "0.1.0"
__all__ = [
    "LM",
    "SHARNN",
    "AdaptiveSpan",
    "Evaluation",
    "SHARNNConfig",
    "Stack",
    "StackConfig",
    "UserError",
    "__version__",
    "evaluate",
    "load",
    "train",
]

_HOMES = {
    "sparing.api": ("evaluate", "load", "train"),
    "sparing.errors": ("UserError",),
    "sparing.evaluation.loss": ("Evaluation",),
    "sparing.lm": ("LM",),
    "sparing.models.sha_rnn.config": ("SHARNNConfig",),
    "sparing.models.sha_rnn.model": ("SHARNN",),
    "sparing.models.stack.config": ("StackConfig",),
    "sparing.models.stack.model": ("Stack",),
    "sparing.nn.attention.span": ("AdaptiveSpan",),
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: torch takes seconds to import."""
    for module, names in _HOMES.items():
        if name in names:
            found = globals()[name] = getattr(import_module(module), name)
            return found
    raise AttributeError(f"module 'sparing' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
