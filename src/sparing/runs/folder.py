"""The run folder: the files of a run, and how to open them again."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparing import files
from sparing.config import differences
from sparing.data.tokens import DataConfig, Tokens, prepare
from sparing.data.vocab import Vocab, vocab_from_json
from sparing.device import Hardware
from sparing.errors import UserError
from sparing.models.api import LanguageModel
from sparing.runs import config as run_config
from sparing.runs.build import build_model
from sparing.runs.config import RunConfig, complete_identity
from sparing.train import checkpoint
from sparing.train.capture import load_model_tensors


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths of one run."""

    path: Path

    @property
    def metrics(self) -> Path:
        """The journal."""
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints `last`, `previous` and `best`."""
        return self.path / "checkpoints"

    @property
    def plots(self) -> Path:
        """Folder of pictures."""
        return self.path / "plots"

    def read(self, name: str) -> dict[str, Any]:
        """The object in a JSON file of the folder, named without its suffix."""
        return files.read_object(self.path / f"{name}.json")

    def write(self, name: str, data: Any) -> None:
        """Replace a JSON file of the folder."""
        files.write_json(self.path / f"{name}.json", data)

    def config(self) -> RunConfig:
        """The run's complete settings."""
        stored = self.read("config")
        try:
            return run_config.from_json({**stored, "family": str(stored.get("family"))})
        except UserError as problem:
            raise UserError(f"{self.path / 'config.json'}: {problem}") from None

    def vocab(self) -> Vocab:
        """The vocabulary the run was trained with."""
        stored = self.read("vocab")
        try:
            return vocab_from_json(stored)
        except UserError as problem:
            raise UserError(f"{self.path / 'vocab.json'}: {problem}") from None

    def checkpoint(self, name: str | None = None) -> str:
        """Name of the checkpoint to use: the one named, else the best, else the last."""
        if name is not None:
            return name
        return "best" if checkpoint.exists(self.checkpoints, "best") else "last"

    def step(self, name: str) -> int:
        """The step at which a checkpoint was written."""
        path = checkpoint.locate(self.checkpoints, name) or self.checkpoints / name
        step = files.read_object(path / checkpoint.CURSOR).get("step")
        if not isinstance(step, int):
            raise UserError(f"{path / checkpoint.CURSOR} is damaged: its step is {step!r}")
        return step

    def results(self) -> dict[str, Any]:
        """The contents of results.json; empty if there is none."""
        return self.read("results") if (self.path / "results.json").exists() else {}

    def note_results(self, results: Mapping[str, Any]) -> None:
        """Add entries to results.json; safe for several processes at once."""
        with files.lock_folder(self.path, name=".results.lock", wait_s=math.inf):
            self.write("results", {**self.results(), **results})


def create(
    path: Path,
    run: RunConfig,
    vocab: Vocab,
    provenance: Mapping[str, Any],
    *,
    texts: Mapping[str, str] | None = None,
) -> RunFolder:
    """Write a new run folder; config.json comes last, so a folder that has one is complete.

    `texts` are the SHA-256 of the splits, by name; later commands compare them with their own.
    """
    folder = RunFolder(path)
    (path / "data.json").unlink(missing_ok=True)
    if texts is not None:
        folder.write("data", {"corpus": run.data.corpus, "text_sha256": dict(texts)})
    folder.write("provenance", provenance)
    folder.write("vocab", vocab.to_json())
    folder.write("config", run_config.to_json(run))
    return folder


def prepare_for_run(
    folder: RunFolder, data: DataConfig, source: Path | None, *, progress: bool = True
) -> Tokens:
    """A corpus as tokens of the run's vocabulary; refused if the text or the vocabulary changed."""
    tokens = prepare(data, source, progress=progress)
    # With other data settings, another text is intended; the caller decides which are allowed.
    if data == folder.config().data:
        _refuse_other_texts(folder, tokens)
    if tokens.vocab.to_json() != folder.vocab().to_json():
        raise UserError(
            f"{data.corpus} now has another vocabulary than run {folder.path} was trained with"
        )
    return tokens


def _refuse_other_texts(folder: RunFolder, tokens: Tokens) -> None:
    # Imported runs were trained elsewhere, and have no data.json.
    if not (folder.path / "data.json").exists():
        return
    stored, found = folder.read("data").get("text_sha256"), tokens.text_sha256()
    if not isinstance(stored, dict):
        raise UserError(f"{folder.path / 'data.json'} is damaged: it has no text_sha256")
    for split, text in found.items():
        if stored.get(split) != text:
            raise UserError(
                f"the {split} text of {tokens.config.corpus} is not the one run {folder.path} "
                "was trained with; restore that text, or train a new run on this one"
            )


def is_of_launch(path: Path, launch_id: str | None) -> bool:
    """Whether `path` holds the run of this launch, whose processes have been restarted."""
    if launch_id is None or not is_run(path):
        return False
    first = RunFolder(path).read("provenance")
    newest = [first, *first.get("resumed", [])][-1]
    return bool(newest.get("launch") == launch_id)


def is_run(path: Path) -> bool:
    """Whether `path` is a run folder."""
    return (path / "config.json").is_file()


def open_run(path: Path) -> RunFolder:
    """An existing run folder."""
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file, and a run is a folder; `sparing score` scores a text")
    if not is_run(path):
        what = "is not a run folder (no config.json)" if path.exists() else "does not exist"
        raise UserError(f"run {path} {what}; `sparing train RECIPE --out {path}` creates one")
    return RunFolder(path)


def refuse_other_settings(path: Path, run: RunConfig) -> None:
    """Refuse an existing run in `path` unless it was trained with the settings of `run`."""
    if not is_run(path):
        return
    before = open_run(path).config()
    if changed := differences(before, run_config.for_vocab(run, before.model.vocab_size)):
        raise UserError(
            f"{path} has other settings ({changed[0]}); change --out, or remove that folder"
        )


def load_model(
    folder: RunFolder, hardware: Hardware, name: str | None = None, run: RunConfig | None = None
) -> LanguageModel:
    """The trained model, ready to evaluate; `run` may change settings that keep the weights."""
    return load_model_and_step(folder, hardware, name, run)[0]


def load_model_and_step(
    folder: RunFolder, hardware: Hardware, name: str | None = None, run: RunConfig | None = None
) -> tuple[LanguageModel, int]:
    """The model and the step of its weights, which a run in training may replace at any time."""
    stored = folder.config()
    loaded = checkpoint.load(
        folder.checkpoints, folder.checkpoint(name), stored.identity(), complete_identity
    )
    step = loaded.cursor.get("step")
    if not isinstance(step, int):
        raise UserError(f"run {folder.path} is damaged: a checkpoint's step is {step!r}")
    model = build_model(run or stored)
    load_model_tensors(model, loaded.tensors["model"])
    return model.to(hardware.device).eval(), step
