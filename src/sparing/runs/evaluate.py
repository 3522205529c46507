"""Evaluation of a run: what is scored, how it is read, and how the results are labelled."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Literal

import numpy as np

from sparing.data.corpora import SPLITS
from sparing.data.tokens import DataConfig, Split, Tokens, drop_newlines, truncate_split
from sparing.device import Hardware, Precision
from sparing.evaluation.cache import CacheConfig, evaluate_with_cache
from sparing.evaluation.dynamic import RATES, DynamicConfig, evaluate_dynamic
from sparing.evaluation.loss import Evaluation, evaluate_streams, evaluate_windows
from sparing.models.api import LanguageModel
from sparing.runs.build import build_model
from sparing.runs.config import RunConfig, with_memory, with_settings
from sparing.runs.folder import RunFolder, load_model_and_step
from sparing.runs.records import read_provenance
from sparing.runs.start import absolute_corpus
from sparing.training.distributed.world import World

SplitName = Literal["train", "valid", "test", "all"]
WHOLE: SplitName = "all"
"""The splits as one text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """What is evaluated: a run, perhaps with other settings, and a text."""

    folder: RunFolder
    run: RunConfig
    hardware: Hardware
    checkpoint: str | None
    tokens: Tokens
    split: str
    size: int | None
    drop_newlines: bool = False
    """Whether newlines are removed from tokens that have them."""
    trained_on: Tokens | None = None
    """The text of the training; None if `tokens` are of it, or nothing needs it."""
    world: World = field(default_factory=World)

    @property
    def protocol(self) -> str:
        """The label of the text that is scored."""
        return "no-newlines" if self.drop_newlines else self.tokens.config.protocol

    def text(self) -> Split:
        """The text to score."""
        return self._read(self.tokens, self.split, self.size)

    def train(self) -> Split:
        """The text the run was trained on."""
        return self._read(self.trained_on or self.tokens, "train", None)

    def _read(self, tokens: Tokens, name: str, size: int | None) -> Split:
        names, vocab = SPLITS if name == WHOLE else (name,), tokens.vocab
        split = join_splits([tokens.split(each) for each in names])
        if size is not None:
            split = truncate_split(split, size, vocab)
        return drop_newlines(split, vocab) if self.drop_newlines else split

    def model(self) -> LanguageModel:
        """The trained model with the case's settings."""
        return self.model_and_step()[0]

    def model_and_step(self) -> tuple[LanguageModel, int]:
        """The model, and the step of its weights."""
        return load_model_and_step(self.folder, self.hardware, self.checkpoint, self.run)

    def with_memory(self, length: int) -> "Case":
        """The case with another memory length, and segments short enough to show its effect."""
        # Within a segment, a token sees all tokens before it, whatever the memory length.
        usual = self.run.evaluate.segment
        segment = min(usual, max(1, length // 2)) if length else usual
        run = with_memory(self.run, length)
        return replace(self, run=with_settings(run, [f"evaluate.segment={segment}"]))

    def remarks(self) -> list[str]:
        """What differs from the default: another checkpoint, another precision."""
        name, usual = self.folder.checkpoint(self.checkpoint), self.folder.checkpoint()
        precision = self.hardware.precision
        trained_in = read_provenance(self.folder.path).get("precision")
        words = [] if name == usual else [name]
        return words + ([] if precision == (trained_in or precision) else [precision])

    def entry(self, found: Evaluation, step: int) -> dict[str, Any]:
        """The entry of results.json for an evaluation of this case."""
        corpus = self.tokens.config.corpus
        elsewhere = corpus != self.folder.config().data.corpus
        return {
            "split": self.split,
            **({"corpus": corpus} if elsewhere else {}),
            **found.to_json(),
            "lossless": self.tokens.vocab.lossless,
            "precision": found.precision,
            "checkpoint": self.folder.checkpoint(self.checkpoint),
            "step": step,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """How the text is read, besides `evaluate.batch` and `evaluate.segment`."""

    window: int | None = None
    """Length of independent windows; None for carried streams."""
    stride: int | None = None
    """Tokens scored per window; None for half of it."""
    cache: CacheConfig | None = None

    def evaluate(self, case: Case, model: LanguageModel) -> Evaluation:
        """Score the text of a case."""
        text, hardware, e = case.text(), case.hardware, case.run.evaluate
        shown = case.world.rank == 0
        common: dict[str, Any] = {"batch": e.batch, "protocol": case.protocol, "progress": shown}
        shared = {**common, "world": case.world}
        if self.window is not None:
            stride = self._stride(self.window)
            return evaluate_windows(
                model, text, hardware, window=self.window, stride=stride, **shared
            )
        if self.cache is not None:
            return evaluate_with_cache(
                model, text, hardware, self.cache, segment=e.segment, **common
            )
        return evaluate_streams(model, text, hardware, segment=e.segment, **shared)

    def label(self, case: Case) -> str:
        """The label in results.json; it names only what differs from the default."""
        if self.window is not None:
            pace = f"window {self.window} stride {self._stride(self.window)}"
            return result_label(case.split, case.protocol, pace, *case.remarks())
        now, stored = case.run.evaluate, case.folder.config().evaluate
        words = [
            f"{name} {value}"
            for name in ("batch", "segment")
            if (value := getattr(now, name)) != getattr(stored, name)
        ]
        if (c := self.cache) is not None:
            words.append(f"cache {c.window} theta {c.theta:g} lambda {c.share:g}")
        return result_label(case.split, case.protocol, *words, *case.remarks())

    def _stride(self, window: int) -> int:
        return max(1, window // 2) if self.stride is None else self.stride


def evaluate_case(
    case: Case, reading: Reading, how: DynamicConfig | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Score the text of a case; return entries for results.json, and the report to print."""
    model, step = case.model_and_step()
    report = case.entry(reading.evaluate(case, model), step)
    found = {reading.label(case): report}
    if how is None:
        return found, report
    moved = evaluate_dynamic(
        model,
        case.text(),
        case.hardware,
        how,
        train=case.train(),
        protocol=case.protocol,
        progress=True,
    )
    # What it was computed in need not be what was asked for.
    used = replace(case, hardware=replace(case.hardware, precision=moved.precision))
    label = result_label(case.split, case.protocol, *_dynamic_words(how), *used.remarks())
    found[label] = used.entry(moved, step)
    return found, report | {"dynamic": moved.to_json()}


def text_to_score(run: RunConfig, corpus: str | None) -> DataConfig:
    """The text of the training, or another one read in the same way."""
    return run.data if corpus is None else replace(run.data, corpus=absolute_corpus(corpus))


def join_splits(splits: Sequence[Split]) -> Split:
    """Return the tokens of several texts as those of one."""
    if len(splits) == 1:
        return splits[0]
    begins = accumulate((split.size_bytes for split in splits), initial=0)
    ends = [
        split.ends.astype(np.int64) + begin
        for split, begin in zip(splits, begins, strict=False)
        if split.ends is not None
    ]
    return Split(
        np.concatenate([split.ids for split in splits]),
        sum(split.size_bytes for split in splits),
        sum(split.words for split in splits),
        splits[0].start,
        np.concatenate(ends) if ends else None,
    )


def _dynamic_words(how: DynamicConfig) -> list[str]:
    usual, words = DynamicConfig(), ["dynamic"]
    if how.rule != usual.rule:
        words.append(f"rule {how.rule}")
    if how.rate != RATES[how.rule]:
        words.append(f"lr {how.rate:g}")
    if how.decay != usual.decay:
        words.append(f"decay {how.decay:g}")
    pace = [] if how.segment == usual.segment else [f"segment {how.segment}"]
    return [*pace, " ".join(words)]


def evaluation_precision(run: RunConfig, wanted: Precision, *, exported: bool) -> Precision:
    """The precision that is wanted; `auto` is that of the training, and float32 for an export."""
    usual: Precision = "float32" if exported else run.train.precision
    return usual if wanted == "auto" else wanted


def has_memory(run: RunConfig) -> bool:
    """Whether the length of a memory changes what is carried.

    A stack has settings for it even where its pattern has no such blocks.
    """
    sizes = [build_model(with_memory(run, length), "meta").state_numbers() for length in (1, 2)]
    return sizes[0] != sizes[1]


def result_label(split: str, protocol: str, *words: str) -> str:
    """The label of a result; the words are what differs from the default."""
    return ", ".join([split, *([] if protocol == "bytes" else [protocol]), *words])
