"""lm-evaluation-harness measures an exported folder as `sparing evaluate` measures the run."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Sparing

from sparing import device
from sparing.export.hf.folder import write_folder
from sparing.runs.folder import load_model, open_run, prepare_for_run

pytestmark = pytest.mark.filterwarnings("ignore")

TASK = """\
task: local_text
dataset_path: json
dataset_kwargs: {data_files: {test: "%s"}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: bits_per_byte}]
"""


def test_bits_per_byte_of_a_local_task_equal_those_of_evaluate(
    sparing: Sparing, run: Path, tmp_path: Path
) -> None:
    pytest.importorskip("lm_eval")
    folder = open_run(run)
    split = prepare_for_run(folder, folder.config().data, None).split("test")
    text = folder.vocab().decode(split.ids).decode()
    model = load_model(folder, device.pick("cpu", "float32"))
    exported = tmp_path / "exported"
    exported.mkdir()
    model.collapse()
    write_folder(exported, model, folder.vocab(), segment=32)
    found = measured(exported, text, tmp_path)
    said = sparing("evaluate", run, "--split", "test", "--batch", 1, "--json").json()
    assert said["bytes"] == len(text.encode())
    assert found == pytest.approx(said["bits_per_byte"], abs=1e-5)


def measured(exported: Path, text: str, tmp_path: Path) -> Any:
    """Bits per byte of a text, as a task in a folder of its own."""
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    data, tasks = tmp_path / "texts.jsonl", tmp_path / "tasks"
    tasks.mkdir()
    data.write_text(json.dumps({"text": text}) + "\n")
    (tasks / "local_text.yaml").write_text(TASK % data)
    model = HFLM(
        pretrained=str(exported),
        trust_remote_code=True,
        device="cpu",
        dtype="float32",
        batch_size=1,
        max_length=len(text) + 1,
    )
    results = simple_evaluate(
        model,
        tasks=["local_text"],
        task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
        bootstrap_iters=0,
    )
    return results["results"]["local_text"]["bits_per_byte,none"]
