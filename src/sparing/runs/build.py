"""Objects from settings."""

from contextlib import nullcontext

import torch

from sparing.device import Hardware
from sparing.errors import UserError
from sparing.models import FAMILIES
from sparing.models.api import LanguageModel
from sparing.runs.config import RunConfig


def build_model(run: RunConfig, device: torch.device | str = "cpu") -> LanguageModel:
    """A freshly initialised model; `meta` builds its shape without its weights.

    Weights are drawn on the CPU, so that a seed means the same weights on every device.
    """
    family = FAMILIES[run.family]
    on_meta = str(device) == "meta"
    try:
        with torch.device("meta") if on_meta else nullcontext():
            model = family.model(run.model)
    except ValueError as problem:
        # Bricks refuse what no config can foresee; their sentence is meant for the user.
        raise UserError(f"bad setting: {problem}") from None
    return model if on_meta else model.to(device)


def prepare_for(hardware: Hardware, model: LanguageModel, *, compiled: bool) -> LanguageModel:
    """Compile what gains, where it gains: on a GPU."""
    if compiled and hardware.device.type == "cuda":
        # Training and evaluation, empty and full memories: each is a version of its own, and the
        # default limit would send the later ones back to plain execution without a word.
        torch._dynamo.config.recompile_limit = 64
        model.compile_parts()
    return model
