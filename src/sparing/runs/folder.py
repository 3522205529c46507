"""The run folder: the files of a run, and how to open them again."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparing import device, files
from sparing.config import differences
from sparing.data.tokens import DataConfig, Tokens, prepare
from sparing.data.vocab import Vocab, vocab_from_json
from sparing.device import Hardware, Precision
from sparing.documents import MisfitError, damage_named, read_document
from sparing.errors import UserError
from sparing.models import onnx_runtime
from sparing.models.api import LanguageModel
from sparing.runs import config as run_config
from sparing.runs.build import build_model
from sparing.runs.config import RunConfig, complete_identity
from sparing.runs.records import Provenance, Result, read_provenance, read_results, read_texts
from sparing.training import checkpoint, swap
from sparing.training.capture import load_model_tensors


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
        changed = self._changed_settings()
        return run_config.read_config(changed) if changed else self.stored_config()

    def stored_config(self) -> RunConfig:
        """The settings in config.json, which those of a pass that has just begun may replace."""
        return run_config.read_config(self.path / "config.json")

    def _changed_settings(self) -> Path | None:
        """Settings that a resume has saved with `last`, but not yet written to config.json."""
        last = swap.locate(self.checkpoints, "last")
        changed = None if last is None else last / checkpoint.SETTINGS
        return changed if changed is not None and changed.is_file() else None

    def adopt_settings(self, run: RunConfig) -> None:
        """Make `run` the settings of the run, after any that were saved with `last`.

        A pass that begins with other settings saves them with its first checkpoint, so that a kill
        can never leave one without the other.
        """
        if changed := self._changed_settings():
            changed.replace(self.path / "config.json")
        if self.config() != run:
            self.write("config", run_config.to_json(run))

    def starts(self) -> list[Provenance]:
        """The provenance of every start of the run, oldest first."""
        first = read_provenance(self.path)
        return [first, *first.pop("resumed", [])]

    def vocab(self) -> Vocab:
        """The vocabulary the run was trained with."""
        path, wanted = self.path / "vocab.json", self.config().model.vocab_size
        with damage_named(path):
            vocab = vocab_from_json(self.read("vocab"))
            if vocab.size != wanted:
                raise MisfitError(f"it has {vocab.size:,} tokens, and the model {wanted:,}")
        return vocab

    def is_finetuned(self) -> bool:
        """Whether the run started from the weights and the vocabulary of another one."""
        return "init" in read_provenance(self.path)

    def is_export(self) -> bool:
        """Whether the model is there as ONNX graphs: an export that is used in place of its run."""
        return onnx_runtime.is_export(self.path)

    def require_checkpoints(self) -> None:
        """Refuse an export, which has no weights to train or to export again."""
        if self.is_export():
            raise UserError(f"{self.path} is an ONNX export; name the run that it was made from")

    def refuse_lost_texts(self) -> None:
        """Refuse a run that was trained on texts of which data.json no longer tells."""
        trained, imported = self.metrics.exists(), "imported" in read_provenance(self.path)
        if trained and not imported and not (self.path / "data.json").exists():
            raise UserError(
                f"run {self.path} has lost its data.json, which identifies the text it was "
                "trained on; restore that file"
            )

    def checkpoint(self, name: str | None = None) -> str:
        """Name of the checkpoint to use: the one named, else the best, else the last."""
        if name is not None:
            return name
        if self.is_export():
            return onnx_runtime.read_manifest(self.path)["checkpoint"]
        return "best" if checkpoint.exists(self.checkpoints, "best") else "last"

    def step(self, name: str) -> int:
        """The step at which a checkpoint was written."""
        if self.is_export():
            return onnx_runtime.read_manifest(self.path)["step"]

        def read() -> int:
            path = swap.locate(self.checkpoints, name) or self.checkpoints / name
            return read_document(path / checkpoint.CURSOR, checkpoint.Position)["step"]

        return checkpoint.read_unmixed(self.checkpoints, name, read)

    def results(self) -> dict[str, Result]:
        """The contents of results.json; empty if there is none."""
        return read_results(self.path)

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
    own = folder.config().data
    given = folder.vocab() if folder.is_finetuned() or data.corpus != own.corpus else None
    tokens = prepare(data, source, progress=progress, vocab=given)
    # With other data settings, another text is intended; the caller decides which are allowed.
    if data == own:
        _refuse_other_texts(folder, tokens)
    if tokens.vocab.to_json() != folder.vocab().to_json():
        raise UserError(
            f"{data.corpus} now has another vocabulary than run {folder.path} was trained with"
        )
    return tokens


def _refuse_other_texts(folder: RunFolder, tokens: Tokens) -> None:
    stored = read_texts(folder.path)
    if stored is None:
        folder.refuse_lost_texts()
        return
    for split, text in tokens.text_sha256().items():
        if stored.get(split) != text:
            raise UserError(
                f"the {split} text of {tokens.config.corpus} is not the one run {folder.path} "
                "was trained with; restore that text, or train a new run on this one"
            )


def is_of_launch(path: Path, launch_id: str | None) -> bool:
    """Whether `path` holds the run of this launch, whose processes have been restarted."""
    if launch_id is None or not is_run(path):
        return False
    return bool(RunFolder(path).starts()[-1].get("launch") == launch_id)


def is_run(path: Path) -> bool:
    """Whether `path` is a run folder."""
    return (path / "config.json").is_file()


def refuse_used_folder(path: Path, *, besides: Sequence[str] = ()) -> None:
    """Refuse a folder for a new run that holds a run already, or what is left of one.

    Checkpoints named in `besides` may be there.
    """
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file, and a run is a folder; choose another name")
    if is_run(path):
        raise UserError(f"{path} already holds a run; resume it, or choose another folder")
    folder = RunFolder(path)
    left = [each for each in (folder.metrics, path / "results.json") if each.exists()]
    names = [name for name in checkpoint.list_names(folder.checkpoints) if name not in besides]
    left += [folder.checkpoints / name for name in names]
    if left:
        raise UserError(
            f"{path} holds {left[0].relative_to(path)} of a run that has lost its config.json; "
            "restore that file, or choose another folder"
        )


def open_run(path: Path) -> RunFolder:
    """An existing run folder."""
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file, and a run is a folder; `sparing score` scores a text")
    if (path / "modeling_sparing.py").exists():
        raise UserError(f"{path} is a Hugging Face export; name the run that it was made from")
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
            f"{path} has other settings ({changed[0]}); choose another folder, or remove it"
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
    if folder.is_export():
        return _open_export(folder, name, run or stored)
    loaded = checkpoint.load(
        folder.checkpoints, folder.checkpoint(name), stored.identity(), complete_identity
    )
    model = build_model(run or stored)
    load_model_tensors(model, loaded.tensors["model"])
    return model.to(hardware.device).eval(), int(loaded.cursor["step"])


def _open_export(folder: RunFolder, name: str | None, run: RunConfig) -> tuple[LanguageModel, int]:
    manifest, stored = onnx_runtime.read_manifest(folder.path), folder.config()
    fixed = f"{folder.path} is an ONNX export"
    if name not in (None, manifest["checkpoint"]):
        raise UserError(f"{fixed} of checkpoint {manifest['checkpoint']}; it has no other")
    if run.model != stored.model or run.evaluate.segment != manifest["chunk"]:
        raise UserError(
            f"{fixed}, whose settings and segments of {manifest['chunk']} tokens are fixed; "
            "name the run that it was made from"
        )
    return onnx_runtime.open_export(folder.path).eval(), manifest["step"]


def pick_hardware(folder: RunFolder, target: str, precision: Precision = "float32") -> Hardware:
    """Choose the device for a run's model; that of an export is the CPU, in float32."""
    if not folder.is_export():
        return device.pick(target, precision)
    fixed = {"`device`": target in ("auto", "cpu"), "`precision`": precision == "float32"}
    if others := [name for name, fits in fixed.items() if not fits]:
        raise UserError(
            f"{folder.path} is an ONNX export, which runs in float32 on the CPU; "
            f"leave {' and '.join(others)} out"
        )
    return device.pick("cpu", "float32")
