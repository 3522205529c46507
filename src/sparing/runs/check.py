"""Whether a run can be trained: by these processes, on this machine, on its text."""

from sparing.data.tokens import Tokens
from sparing.device import ram_bytes
from sparing.errors import UserError
from sparing.launch import current_launch
from sparing.models import FAMILIES
from sparing.models.api import LanguageModel
from sparing.runs.build import build_model, build_stream, stream_config
from sparing.runs.config import RunConfig, for_vocab
from sparing.training.distributed.world import World
from sparing.units import format_bytes


def check_trainable(run: RunConfig) -> None:
    """Raise a UserError for settings that these processes or this machine cannot train."""
    if current_launch().size > 1 and FAMILIES[run.family].model.single_process:
        raise UserError(
            f"a {run.family} is trained by one process; run its seeds in parallel instead"
        )
    if run.optim.trainable and FAMILIES[run.family].model.single_process:
        raise UserError("a search chooses what to train in each step; leave optim.trainable out")
    model = build_model(run, "meta")
    _check_memory(model)
    if model.fixed_micro_batches and run.train.batch < 2 * run.train.micro_batches:
        raise UserError(
            "model.search.turn holds out lanes of every micro-batch, so each needs two: raise "
            "train.batch or lower train.micro_batches"
        )


def _check_memory(model: LanguageModel) -> None:
    """Weights are drawn on the CPU, where too many of them would get the process killed."""
    count = sum(parameter.numel() for parameter in model.parameters())
    size = sum(parameter.nbytes for parameter in model.parameters())
    if size > ram_bytes():
        held = format_bytes(ram_bytes())
        raise UserError(
            f"{count:,} parameters take {format_bytes(size)}, and this machine has {held}; "
            "choose smaller sizes"
        )


def check_run(run: RunConfig, tokens: Tokens) -> None:
    """Raise a UserError for a run that one process could not train on this text."""
    run = for_vocab(run, tokens.vocab.size)
    check_trainable(run)
    build_stream(tokens, stream_config(run), World())
