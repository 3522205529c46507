"""The text log of a search."""

import json
from pathlib import Path

from tests.search.small import searched_run

from sparing.search.log import lines, write_log

TRAIN = {
    "kind": "train", "step": 100, "epoch": 0.5, "nats_per_token": 2.0, "tau": 0.5, "entropy": 0.7,
    "lr": 1e-4, "pi.0.x": 0.75, "pi.0.f": 0.25, "pi.1.x": 0.125, "pi.1.f": 0.875,
}  # fmt: skip
VALID = {
    "kind": "valid", "step": 100, "nats_per_token": 1.5, "perplexity_per_token": 4.48,
    "bits_per_byte": 2.164,
}  # fmt: skip
EVENT = {"kind": "event", "step": 101, "what": "loss is not finite; step skipped"}


def test_it_tells_settings_losses_and_preferences(tmp_path: Path) -> None:
    folder = searched_run(tmp_path / "run", "xfxf")
    folder.metrics.write_text("".join(json.dumps(e) + "\n" for e in (TRAIN, VALID, EVENT)))
    said = list(lines(folder))
    assert "model.candidates = xfi" in said
    assert "step 100  epoch 0.50  loss 2.0000  perplexity 7.39  tau 0.500" in "\n".join(said)
    assert "    Transformer-XL attention  0.75 0.12" in said
    assert "4.48 per token  2.1640 bits per byte" in said[-2]
    assert said[-1] == "step 101: loss is not finite; step skipped"
    write_log(folder)
    assert (folder.path / "search.log").read_text().splitlines() == said
