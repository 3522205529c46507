import json
import os
from pathlib import Path

import pytest
from tests.bench.small import CPU, small_run

from sparing.bench.report import append_record, bytes_per_s, check_out_file, cpu_name, make_report
from sparing.errors import UserError


def test_figures_come_with_machine_code_command_and_settings() -> None:
    record = make_report("train", small_run(), CPU, {"step_s": 1.0})
    assert record["step_s"] == 1.0
    assert {"commit", "versions", "python", "platform", "device", "command"} <= record.keys()
    assert record["processor"] == cpu_name()
    assert record["model"]["dim"] == 8
    assert json.loads(json.dumps(record)) == record


def test_results_are_appended_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    check_out_file(path)
    append_record(path, {"a": 1})
    append_record(path, {"a": 2})
    assert [json.loads(line) for line in path.read_text().splitlines()] == [{"a": 1}, {"a": 2}]


def test_a_file_that_cannot_be_written_is_refused_before_measuring(tmp_path: Path) -> None:
    check_out_file(None)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (tmp_path, tmp_path / "none" / "results.jsonl", pipe):
        with pytest.raises(UserError, match="cannot be written to"):
            check_out_file(path)


def test_bytes_per_second_only_where_a_token_is_a_byte() -> None:
    assert bytes_per_s(small_run(), 3.0) == 3.0
    assert bytes_per_s(small_run("data.vocab=pieces"), 3.0) is None
