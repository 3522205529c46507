"""The run folder: what a run leaves behind, and the way back in."""

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
        """The checkpoint meant: the one named, else the best, else the last."""
        if name is not None:
            return name
        return "best" if checkpoint.exists(self.checkpoints, "best") else "last"

    def step(self, name: str) -> int:
        """The step at which a checkpoint was written."""
        path = checkpoint.located(self.checkpoints, name) or self.checkpoints / name
        step = files.read_object(path / checkpoint.CURSOR).get("step")
        if not isinstance(step, int):
            raise UserError(f"{path / checkpoint.CURSOR} is damaged: its step is {step!r}")
        return step

    def results(self) -> dict[str, Any]:
        """The figures in results.json; none where it is missing."""
        return self.read("results") if (self.path / "results.json").exists() else {}

    def note_results(self, results: Mapping[str, Any]) -> None:
        """Add figures to results.json; several processes may, one after the other."""
        with files.locked(self.path, name=".results.lock", wait_s=math.inf):
            self.write("results", {**self.results(), **results})


def create(
    path: Path,
    run: RunConfig,
    vocab: Vocab,
    provenance: Mapping[str, Any],
    *,
    texts: Mapping[str, str] | None = None,
) -> RunFolder:
    """Lay out a new run; config.json is written last, so that a folder with one is complete.

    `texts` are the SHA-256 of the splits it learns from, by name; later commands hold them to it.
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
    """A corpus as the run's own vocabulary reads it; refused where text or vocabulary changed."""
    tokens = prepare(data, source, progress=progress)
    # Under other settings the text is another by intent; what may change is the caller's to say.
    if data == folder.config().data:
        _refuse_other_texts(folder, tokens)
    if tokens.vocab.to_json() != folder.vocab().to_json():
        raise UserError(f"{data.corpus} has another vocabulary now than run {folder.path} had")
    return tokens


def _refuse_other_texts(folder: RunFolder, tokens: Tokens) -> None:
    """Imported runs have no data.json: they never saw a text of ours."""
    if not (folder.path / "data.json").exists():
        return
    stored, found = folder.read("data").get("text_sha256"), tokens.texts()
    if not isinstance(stored, dict):
        raise UserError(f"{folder.path / 'data.json'} is damaged: it has no text_sha256")
    for split, text in found.items():
        if stored.get(split) != text:
            raise UserError(
                f"the {split} text of {tokens.config.corpus} is not the one run {folder.path} "
                "was made with; bring that text back, or train a new run on this one"
            )


def is_of_launch(path: Path, launch_id: str | None) -> bool:
    """Whether `path` holds the run of this very launch, whose processes were started anew."""
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
    if not is_run(path):
        what = "is not a run folder (no config.json)" if path.exists() else "does not exist"
        raise UserError(f"run {path} {what}; `sparing train RECIPE --out {path}` makes one")
    return RunFolder(path)


def refuse_another(path: Path, run: RunConfig, kind: str) -> None:
    """A folder that is there counts only where it was trained with these very settings."""
    if not is_run(path):
        return
    before = open_run(path).config()
    if changed := differences(before, run_config.for_vocab(run, before.model.vocab_size)):
        raise UserError(f"{path} is of another {kind} ({changed[0]}); change --out, or remove it")


def load_model(
    folder: RunFolder, hardware: Hardware, name: str | None = None, run: RunConfig | None = None
) -> LanguageModel:
    """The trained model, ready to evaluate; `run` may differ in what weights do not depend on."""
    return load_at(folder, hardware, name, run)[0]


def load_at(
    folder: RunFolder, hardware: Hardware, name: str | None = None, run: RunConfig | None = None
) -> tuple[LanguageModel, int]:
    """The same, and the step of its weights: a run that still trains may replace them any time."""
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
