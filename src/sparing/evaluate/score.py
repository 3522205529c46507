"""What a model thinks of texts: the log-probability of each, alone, from a fresh state."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparing import units
from sparing.data.vocab import Vocab
from sparing.device import Hardware
from sparing.errors import UserError
from sparing.evaluate.window import measuring, on_device
from sparing.models.api import LanguageModel, Output, select_lanes
from sparing.units import IGNORE_INDEX


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """The loss of one text, whole and token by token."""

    text: bytes
    loss_nats: float
    """Minus the log-probability of the text."""
    tokens: int
    size_bytes: int
    per_token: list[tuple[bytes, float]]
    """Each token's bytes and its nats."""

    @property
    def bits_per_byte(self) -> float:
        """Bits per byte of the text."""
        return units.bits_per_byte(self.loss_nats, self.size_bytes)

    def to_json(self, *, per_token: bool = False) -> dict[str, Any]:
        """The figures; bytes that are not text appear as replacement characters."""
        data: dict[str, Any] = {
            "text": _readable(self.text),
            "log_probability": -self.loss_nats,
            "bits_per_byte": self.bits_per_byte,
            "tokens": self.tokens,
            "bytes": self.size_bytes,
        }
        if per_token:
            data["per_token"] = [
                {"token": _readable(token), "nats": nats} for token, nats in self.per_token
            ]
        return data


def score(  # noqa: PLR0913  two are keyword-only
    model: LanguageModel,
    vocab: Vocab,
    texts: Sequence[bytes],
    hardware: Hardware,
    *,
    segment: int = 1024,
    batch: int = 8,
) -> list[Score]:
    """Score each text as if it were alone, in the order given."""
    if min(batch, segment) < 1:
        raise UserError(f"batch {batch} and segment {segment} must be at least 1")
    encoded = [_encoded(vocab, text, number) for number, text in enumerate(texts, start=1)]
    # Longest first: neighbours are alike, and a batch sheds its last lanes as their texts end.
    order = sorted(range(len(texts)), key=lambda index: -len(encoded[index]))
    found: dict[int, np.ndarray] = {}
    with measuring(model, hardware):
        for at in range(0, len(order), batch):
            chosen = order[at : at + batch]
            nats = _nats(model, [encoded[index] for index in chosen], vocab.start, segment)
            found |= dict(zip(chosen, nats, strict=True))
    return [_scored(vocab, text, encoded[index], found[index]) for index, text in enumerate(texts)]


def rank(scores: Sequence[Score], *, per_byte: bool = False) -> list[Score]:
    """Most probable first; `per_byte` compares texts of different lengths by bits per byte."""
    return sorted(scores, key=lambda item: item.bits_per_byte if per_byte else item.loss_nats)


def _nats(
    model: LanguageModel, texts: Sequence[np.ndarray], start: int, segment: int
) -> list[np.ndarray]:
    """Nats of every token of texts given longest first."""
    inputs_BN, targets_BN = _padded(texts, start, segment)
    state, pieces = model.initial_state(len(texts), inference=True), []
    for begin in range(0, targets_BN.shape[1], segment):
        active = sum(len(text) > begin for text in texts)
        part = (slice(active), slice(begin, begin + segment))
        own = select_lanes(state, slice(active))
        out: Output = model(on_device(inputs_BN[part], model.device), own)
        targets_BT = on_device(targets_BN[part], model.device)
        pieces.append(model.head.nats(out.hidden_BTD, targets_BT))
        state = out.state
    rows: list[list[np.ndarray]] = [[] for _ in texts]
    for piece_BT in pieces:
        for row, nats_T in zip(rows, piece_BT.double().cpu().numpy(), strict=False):
            row.append(nats_T)
    return [np.concatenate(row)[: len(text)] for row, text in zip(rows, texts, strict=True)]


def _padded(texts: Sequence[np.ndarray], start: int, segment: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets, padded on the right.

    A text longer than one segment gets whole segments: how much memory a model keeps may depend
    on the segment's length, which must not depend on a neighbour's.
    """
    width = len(texts[0])
    if width > segment:
        width = -(-width // segment) * segment
    inputs_BN = np.full((len(texts), width), start, dtype=np.int64)
    targets_BN = np.full_like(inputs_BN, IGNORE_INDEX)
    for lane, text in enumerate(texts):
        inputs_BN[lane, 1 : len(text)] = text[:-1]
        targets_BN[lane, : len(text)] = text
    return inputs_BN, targets_BN


def _encoded(vocab: Vocab, text: bytes, number: int) -> np.ndarray:
    ids = vocab.encode(text)
    if not text or len(ids) == 0:
        raise UserError(f"text {number} is empty; there is nothing to score")
    return ids


def _scored(vocab: Vocab, text: bytes, ids: np.ndarray, nats: np.ndarray) -> Score:
    return Score(
        text=text,
        loss_nats=float(nats.sum()),
        tokens=len(ids),
        size_bytes=len(text),
        per_token=[
            (vocab.token_bytes(int(token)), float(loss))
            for token, loss in zip(ids, nats, strict=True)
        ],
    )


def _readable(text: bytes) -> str:
    return text.decode("utf-8", errors="replace")
