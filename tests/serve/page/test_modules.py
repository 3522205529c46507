"""The page's modules that need no browser, tested by Node's own test runner."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

NODE = shutil.which("node")
OLDEST = (20, 19)
"""The first that takes a module for one without being told."""


def version() -> tuple[int, ...]:
    if NODE is None:
        return (0,)
    said = subprocess.run([NODE, "--version"], capture_output=True, text=True, check=True).stdout
    return tuple(int(each) for each in re.findall(r"\d+", said))


@pytest.mark.skipif(version() < OLDEST, reason="no Node here, or an old one")
@pytest.mark.parametrize("part", ["characters", "looking", "share", "text"])
def test_the_modules_of_the_page_pass_their_own_tests(part: str) -> None:
    tests = Path(__file__).parent / f"{part}.test.mjs"
    done = subprocess.run([str(NODE), "--test", str(tests)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
