"""What a training starts from: a recipe, the settings of a command or call, and a folder."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from sparing.data.corpora import CORPORA
from sparing.errors import UserError
from sparing.launch import current_launch, launched_at
from sparing.runs.config import RunConfig, read_config, with_settings
from sparing.runs.finetune import Init, finetune_recipe
from sparing.runs.folder import is_run, open_run
from sparing.runs.recipes import recipe


def load_recipe(name: str, path: Path | None = None, *, resume: bool = False) -> RunConfig:
    """Load a recipe by name or from a JSON file, or the config of the run to resume in `path`."""
    if not resume or path is None:
        if not name:
            raise UserError("name a recipe; `sparing recipes` lists them")
        if name.endswith(".json"):
            return read_config(Path(name))
        _refuse_path(name)
        return recipe(name)
    run = open_run(path).config()
    if name and name != run.recipe:
        raise UserError(f"{path} was started from recipe {run.recipe!r}, not {name!r}")
    return run


def _refuse_path(name: str) -> None:
    """Refuse a run or a text in the place of a recipe, and say how to name it."""
    if is_run(Path(name)):
        raise UserError(f"{name} is a run, not a recipe; `init` starts from it, `resume` goes on")
    if Path(name).is_file():
        raise UserError(f"{name} is not a recipe; a text of your own is `data`")


def check_start(
    init: str | None, checkpoint: str | None, *, resume: bool, cut_journal: bool
) -> None:
    """Refuse options of a start that contradict each other, or would have no effect."""
    if init is not None and resume:
        raise UserError("`init` starts a new run and `resume` continues one; leave one of them out")
    if checkpoint is not None and init is None and not resume:
        raise UserError("`checkpoint` needs `resume` or `init`")
    if cut_journal and not resume:
        raise UserError("cutting the journal needs `resume`")


def load_start(
    name: str, path: Path, init: Init | None, *, resume: bool, corpus: str | None
) -> RunConfig:
    """Load the recipe of a run that may start from other weights; its name may then be missing."""
    if init is None or name:
        return load_recipe(name, path, resume=resume)
    if corpus is None:
        raise UserError("name the text to fine-tune on (`data`), or a recipe that has one")
    return finetune_recipe(init)


def apply_settings(
    run: RunConfig, settings: list[str], minutes: float | None, corpus: str | None
) -> RunConfig:
    """Return the run with the settings of a command or call applied."""
    names = {_name(setting) for setting in settings}
    given = {("minutes", "train.minutes"): minutes, ("data", "data.corpus"): corpus}
    for (argument, name), value in given.items():
        if value is not None and name in names:
            raise UserError(f"`{argument}` and {name} are the same; leave one of them out")
    if minutes is not None:
        settings = _replace_budget(run, [*settings, f"train.minutes={minutes}"])
    if corpus is not None:
        settings = [*settings, f"data.corpus={corpus}"]
    if "model.vocab_size" in names:
        raise UserError("model.vocab_size comes from the data; set data.vocab or data.vocab_size")
    if names & {"train.steps", "train.epochs"}:
        settings = _replace_budget(run, settings)
    before, run = run.data.corpus, with_settings(run, settings)
    if run.data.corpus == before:
        return run
    return replace(run, data=replace(run.data, corpus=absolute_corpus(run.data.corpus)))


def absolute_corpus(corpus: str) -> str:
    """Return a corpus name unchanged and a path as an absolute one, valid in other folders too."""
    if not corpus.strip():
        raise UserError("`data` is empty; name a corpus, or your own text file or folder")
    path = Path(corpus)
    return str(path.resolve()) if corpus not in CORPORA and path.exists() else corpus


def _replace_budget(run: RunConfig, settings: list[str]) -> list[str]:
    """Make the given budget replace the recipe's own, whatever unit that has."""
    given = {_name(setting) for setting in settings}
    others = [
        f"train.{unit}=none"
        for unit in ("steps", "epochs", "minutes")
        if getattr(run.train, unit) is not None and f"train.{unit}" not in given
    ]
    return [*settings, *others]


def _name(setting: str) -> str:
    return setting.partition("=")[0].strip()


def default_run_path(name: str, *, resume: bool) -> Path:
    """A folder named after the recipe and the time."""
    if resume:
        raise UserError("`resume` needs `out`, the folder of the run to continue")
    if current_launch().nodes > 1:
        raise UserError("on several machines, give `out`, a folder that all of them share")
    stamp = launched_at().strftime("%Y%m%d-%H%M%S")
    return Path("runs") / f"{Path(name).stem or 'run'}-{stamp}"


def assignments(settings: Mapping[str, object]) -> list[str]:
    """Write settings given as a mapping as the `name=value` that `apply_settings` takes."""
    return [f"{name}={_assigned(value)}" for name, value in settings.items()]


def _assigned(value: object) -> str:
    if isinstance(value, tuple | list):
        return ",".join(map(str, value)) + ("," if len(value) == 1 else "") or "()"
    return str(value)
