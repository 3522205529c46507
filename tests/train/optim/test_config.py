"""Settings that make no sense are refused by name."""

from typing import Any

import pytest

from sparing.config import from_json, to_json, with_settings
from sparing.errors import UserError
from sparing.train.optim import OptimConfig


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("lr", -1.0),
        ("lr", float("nan")),
        ("table_lr", float("inf")),
        ("eps", -1e-8),
        ("clip", -0.1),
        ("tensor_clip", -0.1),
        ("weight_decay", -0.1),
        ("momentum", 1.0),
        ("patience", 0),
        ("betas", (0.9, 1.0)),
        ("betas", (-0.1, 0.9)),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(UserError, match=field):
        OptimConfig(**{field: value})


def test_settings_survive_json_and_the_command_line() -> None:
    config = with_settings(OptimConfig(), ["name=muon", "lr=0.02", "betas=0.8,0.95", "eps=none"])
    assert config == OptimConfig(name="muon", lr=0.02, betas=(0.8, 0.95))
    assert from_json(OptimConfig, to_json(config)) == config
