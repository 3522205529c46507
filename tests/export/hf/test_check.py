"""A folder that answers differently is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.export.hf.conftest import LETTERS
from tests.models.tiny import tiny

from sparing.errors import UserError
from sparing.export.hf import check
from sparing.export.hf.check import PIECES, check_folder
from sparing.export.hf.folder import write_folder

WHOLE = sum(PIECES)


@pytest.mark.parametrize(
    ("changed", "by", "reason"),
    [
        ("ids", 1, "tokenizer"),
        ("whole", 1e-3, "logits differ by up to 0.001"),
        ("carried", 1e-3, "logits differ by up to 0.001"),
        ("carried", torch.nan, "logits differ by up to nan"),
    ],
)
def test_other_answers_are_refused(
    changed: str, by: float, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, added = tiny("sha_rnn").float(), [0, by]

    def answers(folder: Path, asked: Any) -> dict[str, torch.Tensor]:
        assert folder == tmp_path
        tokens_1T = asked["tokens"]
        found = {
            "ids": tokens_1T[0].clone(),
            "whole": check._logits(model, tokens_1T, [sum(PIECES)], WHOLE),
            "carried": check._logits(model, tokens_1T, PIECES, WHOLE),
        }
        found[changed][0] += added.pop(0)
        return found

    monkeypatch.setattr(check, "_ask", answers)
    assert check_folder(tmp_path, model, LETTERS, segment=WHOLE) == 0
    with pytest.raises(UserError, match=reason):
        check_folder(tmp_path, model, LETTERS, segment=WHOLE)


@pytest.mark.story
def test_a_folder_that_does_not_load_is_refused_with_the_reason(tmp_path: Path) -> None:
    write_folder(tmp_path, tiny("awd_lstm").float(), LETTERS, segment=WHOLE)
    (tmp_path / "sparing_family.py").write_text("from sparing.models import FAMILIES\n")
    with pytest.raises(UserError, match=r"cannot load.*sparing"):
        check_folder(tmp_path, tiny("awd_lstm").float(), LETTERS, segment=WHOLE)
