"""Log-probabilities of texts, each scored independently from a fresh state."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparing import units
from sparing.data.vocab import Vocab
from sparing.device import Hardware
from sparing.documents import shown
from sparing.errors import UserError
from sparing.evaluation.loss import finite_or_none
from sparing.evaluation.window import to_device
from sparing.models.api import LanguageModel, Output, eval_mode, select_lanes
from sparing.units import IGNORE_INDEX


@dataclass(frozen=True, kw_only=True, slots=True)
class TextScore:
    """The loss of one text, in total and per token."""

    text: bytes
    loss_nats: float
    """Minus the log-probability of the text."""
    tokens: int
    size_bytes: int
    per_token: list[tuple[bytes, float]]
    """Bytes and nats of each token."""

    def __repr__(self) -> str:
        figures = f"{self.loss_nats:.3f} nats, {self.bits_per_byte:.4f} bits per byte"
        return f"TextScore({shown(self.text)}, {figures})"

    @property
    def bits_per_byte(self) -> float:
        """Bits per byte of the text."""
        return units.bits_per_byte(self.loss_nats, self.size_bytes)

    def to_json(self, *, per_token: bool = False) -> dict[str, Any]:
        """All figures, None if not finite, and replacement characters where bytes are not UTF-8."""
        data: dict[str, Any] = {
            "text": _readable(self.text),
            "log_probability": finite_or_none(-self.loss_nats),
            "bits_per_byte": finite_or_none(self.bits_per_byte),
            "tokens": self.tokens,
            "bytes": self.size_bytes,
        }
        if per_token:
            data["per_token"] = [
                {"token": _readable(token), "nats": finite_or_none(nats)}
                for token, nats in self.per_token
            ]
        return data


def score_texts(  # noqa: PLR0913  two are keyword-only
    model: LanguageModel,
    vocab: Vocab,
    texts: Sequence[bytes],
    hardware: Hardware,
    *,
    segment: int = 1024,
    batch: int = 8,
) -> list[TextScore]:
    """Score each text independently of the others; results are in the order given."""
    if min(batch, segment) < 1:
        raise UserError(f"batch {batch} and segment {segment} must be at least 1")
    encoded = [_encode(vocab, text, number) for number, text in enumerate(texts, start=1)]
    # Longest first: lengths in a batch are similar, and lanes leave a batch when their texts end.
    order = sorted(range(len(texts)), key=lambda index: -len(encoded[index]))
    found: dict[int, np.ndarray] = {}
    with eval_mode(model, hardware):
        for at in range(0, len(order), batch):
            chosen = order[at : at + batch]
            nats = _nats(model, [encoded[index] for index in chosen], vocab.start, segment)
            found |= dict(zip(chosen, nats, strict=True))
    return [
        to_text_score(vocab, text, encoded[index], found[index]) for index, text in enumerate(texts)
    ]


def rank_texts(scores: Sequence[TextScore], *, per_byte: bool = False) -> list[TextScore]:
    """Sort by probability, highest first, or by bits per byte to compare different lengths."""
    return sorted(scores, key=lambda item: item.bits_per_byte if per_byte else item.loss_nats)


def _nats(
    model: LanguageModel, texts: Sequence[np.ndarray], start: int, segment: int
) -> list[np.ndarray]:
    """Return the nats of every token; the longest text must come first."""
    inputs_BN, targets_BN = _pad(texts, start, segment)
    state, pieces = model.initial_state(len(texts), inference=True), []
    for begin in range(0, targets_BN.shape[1], segment):
        active = sum(len(text) > begin for text in texts)
        part = (slice(active), slice(begin, begin + segment))
        active_state = select_lanes(state, slice(active))
        out: Output = model(to_device(inputs_BN[part], model.device), active_state)
        targets_BT = to_device(targets_BN[part], model.device)
        pieces.append(model.head.nats(out.hidden_BTD, targets_BT))
        state = out.state
    rows: list[list[np.ndarray]] = [[] for _ in texts]
    for piece_BT in pieces:
        for row, nats_T in zip(rows, piece_BT.double().cpu().numpy(), strict=False):
            row.append(nats_T)
    return [np.concatenate(row)[: len(text)] for row, text in zip(rows, texts, strict=True)]


def _pad(texts: Sequence[np.ndarray], start: int, segment: int) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and targets, padded on the right.

    A text longer than one segment is padded to full segments: how much memory a model keeps may
    depend on the length of the segment, which must not depend on the other texts of the batch.
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


def _encode(vocab: Vocab, text: bytes, number: int) -> np.ndarray:
    ids = vocab.encode(text)
    if not text or len(ids) == 0:
        raise UserError(f"text {number} is empty; leave it out")
    return ids


def to_text_score(vocab: Vocab, text: bytes, ids: np.ndarray, nats: np.ndarray) -> TextScore:
    """Put the nats of every token together with the text."""
    return TextScore(
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
