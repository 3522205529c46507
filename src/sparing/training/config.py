"""Settings of the training loop: batch, budget, precision, logging."""

from dataclasses import dataclass
from typing import Literal

from sparing.device import Precision

Reduction = Literal["float32", "bfloat16"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """Settings of the loop."""

    batch: int = 16
    """Lanes: contiguous streams of text read in parallel."""
    segment: int = 1024
    """Tokens per lane and step; gradients are not propagated further back."""
    randomised: bool = False
    """Draw each segment's length as SHA-RNN does, instead of always taking `segment`."""
    length_std: float = 5.0
    """Standard deviation of the randomised lengths."""
    halved: float = 0.05
    """Share of the randomised lengths that lie near half of `segment`."""
    longest: int | None = None
    """Largest number of tokens of a randomised segment; None: `segment`."""
    random_epoch_offset: bool = False
    """Start every epoch but the first at a random offset, so that segments are cut differently."""
    shuffle_chunk: int | None = None
    """Shuffle the text in every epoch, in chunks of this many tokens (64k to 256k are usual), a
    multiple of `segment`; None: read it in order."""
    shuffle_reset: bool = False
    """Reset the state of a lane at the start of each chunk of `shuffle_chunk`, which it then reads
    as a text of its own, instead of carrying the state over from the chunk before."""
    state_reset: float = 0.0
    """Probability that a lane's state is reset before a segment, which the lane then reads as if
    a text began there."""
    lr_by_length: bool = False
    """Multiply the learning rate of each step by its segment's length over `segment`."""
    micro_batches: int = 1
    """Parts the batch is split into to save memory; only dropout masks change."""
    steps: int | None = None
    """Stop after this many updates."""
    epochs: float | None = None
    """Stop after this many passes over the training text."""
    minutes: float | None = None
    """Stop after this much time; the learning rate is annealed over it."""
    seed: int = 1111
    """Seed of weights, dropout, segment lengths, epoch offsets, chunk orders and state resets."""
    precision: Precision = "auto"
    """Precision of matrix products; `auto` is bfloat16 on a GPU and float32 on a CPU."""
    reduction: Reduction = "float32"
    """Precision in which several processes reduce their gradients."""
    compiled: bool = True
    """Compile the parts that benefit from it (on a GPU)."""
    log_every: int = 10
    """Steps between two journal entries."""
    evaluate_every: int = 0
    """Steps between two evaluations on the valid split; 0: after each epoch and at the end."""
    evaluate_bytes: int | None = None
    """Evaluate on the first bytes of the valid split only; None: on all of it."""
    checkpoint_every: int = 500
    """Steps between two checkpoints."""
    keep_state: bool = True
    """Save optimizer and carried state, often gigabytes, with the last checkpoint of a finished
    run; without them, the run can only be continued by a second pass, and averages of the weights
    are in `best` alone."""
    bad_steps: int = 3
    """Consecutive steps with non-finite loss or gradients before rolling back to a checkpoint."""

    def __post_init__(self) -> None:
        for name, least in LEAST.items():
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise ValueError(f"train.{name} must be at least {least}, not {value}")
        for name in ("steps", "epochs", "minutes"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ValueError(f"train.{name} must be positive, not {value}")
        if not self.halved <= 1:
            raise ValueError(f"train.halved is a share, at most 1, not {self.halved}")
        if not 0 <= self.state_reset <= 1:
            raise ValueError(f"train.state_reset must be from 0 to 1, not {self.state_reset}")
        self._check_chunks()
        if self.seed >= 1 << 63:
            raise ValueError(f"train.seed must be below 2^63, not {self.seed}")
        if self.batch % self.micro_batches:
            raise ValueError(f"train.micro_batches {self.micro_batches} must divide {self.batch}")
        if self.steps is None and self.epochs is None and self.minutes is None:
            raise ValueError("one of train.steps, train.epochs and train.minutes must be set")

    def _check_chunks(self) -> None:
        chunk = self.shuffle_chunk
        if chunk is not None and chunk % self.segment:
            raise ValueError(
                f"train.shuffle_chunk {chunk} must be a multiple of train.segment {self.segment}"
            )
        if self.shuffle_reset and (chunk is None or self.randomised):
            raise ValueError(
                "train.shuffle_reset needs train.shuffle_chunk, and train.randomised=false: chunks "
                "must begin with a segment"
            )


LEAST = {
    "batch": 1,
    "segment": 1,
    "micro_batches": 1,
    "log_every": 1,
    "checkpoint_every": 1,
    "bad_steps": 1,
    "evaluate_bytes": 1,
    "longest": 1,
    "shuffle_chunk": 1,
    "evaluate_every": 0,
    "seed": 0,
    "halved": 0,
    "length_std": 0,
}
