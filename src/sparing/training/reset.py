"""The state that a segment is read with: carried, or fresh where a lane begins a text."""

import numpy as np
import numpy.typing as npt

from sparing.data.stream import Segment
from sparing.evaluation.window import to_device
from sparing.training.config import TrainConfig
from sparing.training.state import Training

RESET_SEED = 0x5EED
"""Separates these random numbers from others drawn with the same seed."""


def begin_segment(training: Training, segment: Segment, config: TrainConfig) -> Segment:
    """Set the state that `segment` is read with, and return the segment as it is read.

    All lanes have a fresh state at the start of an epoch. Lanes that are reset begin a text, so
    they read the start token in place of the token before it, as generation and compression do.
    """
    if segment.fresh:
        training.state = training.fresh_state(segment.inputs_BT.size(0))
    chosen = lanes_to_reset(training, config, segment.begins_B)
    # Over the lanes of all processes: the entries of a state must not differ between them.
    if not chosen.any():
        return segment
    local = training.world.lanes(config.batch)
    lanes_B = to_device(chosen[local.start : local.stop], training.hardware.device)
    training.state = training.model.reset_lanes(training.state, lanes_B)
    inputs_BT = segment.inputs_BT.clone()
    inputs_BT[:, 0].masked_fill_(lanes_B, training.stream.split.start)
    return segment._replace(inputs_BT=inputs_BT)


def lanes_to_reset(
    training: Training, config: TrainConfig, begins_B: npt.NDArray[np.bool_] | None = None
) -> npt.NDArray[np.bool_]:
    """Which lanes of all processes are reset: those that begin a chunk, and others at random.

    The choice depends on seed and step alone.
    """
    random = np.random.default_rng((RESET_SEED, config.seed, training.counters.step))
    chosen = random.random(config.batch) < config.state_reset
    return chosen if begins_B is None else chosen | begins_B
