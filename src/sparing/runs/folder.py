"""The run folder: what a run leaves behind, and the way back in."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparing import files
from sparing.data.tokens import DataConfig, Tokens, prepare
from sparing.data.vocab import Vocab, vocab_from_json
from sparing.device import Hardware
from sparing.errors import UserError
from sparing.models.api import LanguageModel
from sparing.runs import config as run_config
from sparing.runs.build import build_model
from sparing.runs.config import RunConfig
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

    def read(self, name: str) -> Any:
        """A JSON file of the folder, without its suffix."""
        return files.read_json(self.path / f"{name}.json")

    def write(self, name: str, data: Any) -> None:
        """Replace a JSON file of the folder."""
        files.write_json(self.path / f"{name}.json", data)

    def config(self) -> RunConfig:
        """The run's complete settings."""
        try:
            return run_config.from_json(self.read("config"))
        except UserError as problem:
            raise UserError(f"{self.path / 'config.json'}: {problem}") from None

    def vocab(self) -> Vocab:
        """The vocabulary the run was trained with."""
        return vocab_from_json(self.read("vocab"))

    def checkpoint(self, name: str | None = None) -> str:
        """The checkpoint meant: the one named, else the best, else the last."""
        if name is not None:
            return name
        return "best" if checkpoint.exists(self.checkpoints, "best") else "last"

    def step(self, name: str) -> int:
        """The step at which a checkpoint was written."""
        path = checkpoint.located(self.checkpoints, name)
        return int(files.read_json((path or self.checkpoints) / checkpoint.CURSOR)["step"])

    def note_results(self, results: Mapping[str, Any]) -> None:
        """Add figures to results.json."""
        old = self.read("results") if (self.path / "results.json").exists() else {}
        self.write("results", {**old, **results})


def create(path: Path, run: RunConfig, vocab: Vocab, provenance: Mapping[str, Any]) -> RunFolder:
    """Lay out a new run; config.json is written last, so that a folder with one is complete."""
    folder = RunFolder(path)
    folder.write("provenance", provenance)
    folder.write("vocab", vocab.to_json())
    folder.write("config", run_config.to_json(run))
    return folder


def prepare_for_run(
    folder: RunFolder, data: DataConfig, source: Path | None, *, progress: bool = True
) -> Tokens:
    """A corpus as the run's own vocabulary reads it; refused where it now has another."""
    tokens = prepare(data, source, progress=progress)
    if tokens.vocab.to_json() != folder.vocab().to_json():
        raise UserError(f"{data.corpus} has another vocabulary now than run {folder.path} had")
    return tokens


def is_run(path: Path) -> bool:
    """Whether `path` is a run folder."""
    return (path / "config.json").is_file()


def open_run(path: Path) -> RunFolder:
    """An existing run folder."""
    if not is_run(path):
        what = "is not a run folder (no config.json)" if path.exists() else "does not exist"
        raise UserError(f"run {path} {what}; `sparing train RECIPE --out {path}` makes one")
    return RunFolder(path)


def load_model(
    folder: RunFolder, hardware: Hardware, name: str | None = None, run: RunConfig | None = None
) -> LanguageModel:
    """The trained model, ready to evaluate; `run` may differ in what weights do not depend on."""
    stored = folder.config()
    loaded = checkpoint.load(folder.checkpoints, folder.checkpoint(name), stored.identity())
    model = build_model(run or stored)
    load_model_tensors(model, loaded.tensors["model"])
    return model.to(hardware.device).eval()
