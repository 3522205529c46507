"""The layers as a test: imports go down, importing does nothing, extras stay optional."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "sparing"
BASE = {
    "errors", "arguments", "inputs", "files", "documents", "config", "units", "device", "launch",
    "host_copy", "signals", "terminal", "__init__",
}  # fmt: skip
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "arguments": set(),
    "units": set(),
    "host_copy": set(),
    "signals": set(),
    "terminal": set(),
    "inputs": {"errors"},
    "files": {"errors", "inputs"},
    "documents": {"errors", "files"},
    "config": {"errors", "documents"},
    "launch": {"errors"},
    "device": {"errors", "launch", "units"},
    "__init__": {"api", "errors", "evaluation", "lm", "models", "nn"},
    "ops": set(),
    "nn": {"ops", "units", "host_copy"},
    "models": BASE | {"nn", "ops"},
    "data": BASE,
    "evaluation": BASE | {"models", "data"},
    "generate": BASE | {"models", "data"},
    "compress": BASE | {"models", "data", "evaluation"},
    "training": BASE | {"models", "data", "evaluation"},
    "export": BASE | {"models", "data"},
    "runs": BASE | {"models", "data", "evaluation", "generate", "training"},
    "lm": BASE | {"models", "data", "evaluation", "generate", "compress", "training", "runs"},
    "api": BASE | {"models", "data", "evaluation", "generate", "training", "runs", "lm"},
    "experiments": BASE | {"models", "data", "evaluation", "generate", "training", "runs"},
    "plot": BASE | {"models", "data", "evaluation", "generate", "training", "runs"},
    "bench": BASE | {"models", "data", "evaluation", "generate", "training", "runs", "nn", "ops"},
    "search": BASE
    | {"models", "data", "evaluation", "training", "runs", "experiments", "plot", "bench"},
    "serve": BASE | {"models", "data", "evaluation", "generate", "training", "runs", "lm"},
    "cli": BASE
    | {
        "models",
        "data",
        "evaluation",
        "generate",
        "compress",
        "training",
        "runs",
        "experiments",
        "plot",
        "bench",
        "export",
        "serve",
        "search",
        "lm",
    },
    "__main__": {"cli", "launch", "signals"},
}
ONLY_THE_API = {"training", "evaluation", "generate", "compress"}
EXTRAS = (
    "matplotlib", "tensorboard", "sentencepiece", "pyarrow", "zstandard", "transformers", "fastapi",
    "pydantic", "uvicorn", "prometheus_client", "ray", "constriction", "onnx", "onnxscript",
    "onnxruntime",
)  # fmt: skip
COPIED = ("export/hf/remote/", "export/onnx/runner.py")
"""Code for exported folders, which does not run here."""
WHOLE = ("app", "completions", "ray_cluster", "schema", "server")
"""Modules of `serve` that consist of what an extra offers; imported inside `cli/serve.py`."""


def package_of(path: Path) -> str:
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """Dotted names below `sparing` that a file imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if (
            isinstance(node, ast.ImportFrom)
            and node.module
            and node.module.split(".")[0] == "sparing"
        ):
            below = node.module.removeprefix("sparing").lstrip(".")
            found |= {below} if below else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            found |= {
                name.removeprefix("sparing.") for name in names if name.startswith("sparing.")
            }
    return found


def test_packages_only_import_downwards() -> None:
    wrong = [
        f"{path.relative_to(SRC)} imports {name}"
        for path in SRC.rglob("*.py")
        for name in imported(path)
        if (package := name.split(".")[0]) != package_of(path)
        and package != "__version__"
        and package not in MAY_IMPORT[package_of(path)]
    ]
    assert not wrong, "\n".join(wrong)


def test_stream_and_loss_share_one_ignore_index() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in SRC.rglob("*.py")}
    homes = [
        path.name for path, text in texts.items() if re.search(r"^IGNORE_INDEX\b.*=", text, re.M)
    ]
    assert homes == ["units.py"]
    whole = "\n".join(texts.values())
    named = re.findall(r"ignore_index=([\w.-]+)", whole)
    assert set(named) == {"IGNORE_INDEX"}


def test_training_evaluation_and_generation_see_only_the_model_api() -> None:
    wrong = [
        f"{path.relative_to(SRC)} imports {name}"
        for path in SRC.rglob("*.py")
        if package_of(path) in ONLY_THE_API
        for name in imported(path)
        if name.startswith("models") and name != "models.api"
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("extra", EXTRAS)
def test_every_module_imports_without_the_extras(extra: str) -> None:
    modules = [
        ".".join(("sparing", *path.relative_to(SRC).with_suffix("").parts))
        for path in SRC.rglob("*.py")
        if path.name not in ("__init__.py", "__main__.py")
        and not path.relative_to(SRC).as_posix().startswith(COPIED)
        and not (package_of(path) == "serve" and path.stem in WHOLE)
    ]
    script = f"import sys, importlib; sys.modules[{extra!r}] = None\nfor m in {modules!r}: importlib.import_module(m)"  # noqa: E501
    environment = {**os.environ, "PYTHONPATH": str(SRC.parent)}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr


def test_only_released_checkpoints_are_unpickled_and_only_as_tensors() -> None:
    words = ("import pickle", "torch.save(", "torch.load(")
    found = {
        str(path.relative_to(SRC))
        for path in SRC.rglob("*.py")
        if any(word in path.read_text() for word in words)
    }
    assert found == {"runs/released/reader.py"}
    door = (SRC / "runs" / "released" / "reader.py").read_text()
    assert [door.count(word) for word in words] == [1, 0, 2]
    assert 'torch.load(handle, "cpu", weights_only=True)' in door
    # The second opens whole modules through an unpickler that finds no classes.
    assert "pickle_module=GUARDED_PICKLE" in door


def test_everything_is_printed_in_one_place_which_escapes() -> None:
    words = ("typer.echo(", "sys.stdout.write(", "sys.stderr.write(")
    found = {
        str(path.relative_to(SRC))
        for path in SRC.rglob("*.py")
        if any(word in path.read_text() for word in words)
    }
    # That one passes on what a child process has printed with the same care.
    assert found == {"experiments/subprocess.py"}
