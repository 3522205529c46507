"""For every test: one thread (the runner uses both cores), and no deadlines.

Without a GPU, Triton's kernels run as plain Python. Transformers looks nothing up, and copies code
to a temporary folder only. Both libraries read these variables when they are imported.
"""

import os
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
CACHE = tempfile.TemporaryDirectory()
os.environ.update(HF_HUB_OFFLINE="1", HF_HOME=CACHE.name, TOKENIZERS_PARALLELISM="false")

# A busy machine makes every example slow; a test must not fail for that.
settings.register_profile("sparing", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("sparing")

TESTS = Path(__file__).parent
STORIES = (
    "cli/", "experiments/", "training/distributed/", "bench/", "search/test_run.py",
    "search/test_board.py", "runs/test_crash.py", "runs/test_kill.py", "runs/test_torchrun.py",
    "test_examples.py", "test_printed_programs.py", "serve/test_process.py", "serve/test_ray.py",
)  # fmt: skip
"""Tests that start commands or processes, or train for seconds."""
COMPILES = ("compile", "serves_all_groups", "does_not_fit_is_split")
"""Words in the names of tests that compile for seconds."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the slow tier: `make check` leaves it out, `make test` runs it."""
    for item in items:
        path = item.path.relative_to(TESTS).as_posix()
        if path.startswith(STORIES) or any(word in item.name for word in COMPILES):
            item.add_marker(pytest.mark.story)
