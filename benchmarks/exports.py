"""Every family as ONNX graphs and for Hugging Face: how far logits are from ours, and how large.

    python benchmarks/exports.py

Small models whose random weights are larger than those before training, so that every part of them
counts. They are compared as `sparing export` does.
"""

import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from sparing.config import to_json
from sparing.data.vocab import SymbolVocab
from sparing.export.hf.write import write_hf
from sparing.export.onnx.graph import GraphOptions
from sparing.export.onnx.write import write_onnx
from sparing.export.trained import Trained
from sparing.models import FAMILIES
from sparing.models.api import Output, SizeLimit
from sparing.models.onnx_runtime import STEP
from sparing.runs.recipes import recipe

RECIPES = {
    "enwik8_sha_rnn": 0.1,
    "enwik8_adaptive_span": 0.1,
    "enwik8_transformer_xl": 0.1,
    "enwik8_awd_lstm": 0.2,
    "enwik8_mlstm": 0.2,
    "enwik8_20min": 0.1,
}
"""One of each family that can be exported, and the size of the noise on its weights. With more,
LSTMs are chaotic: torch's own logits in float32 and float64 soon have nothing in common."""
LIMIT = SizeLimit(dim=128, memory=512)
TOKENS = 64


def main() -> None:
    """Print a table."""
    torch.set_num_threads(1)
    print("| family, recipe | parameters | logits up to | ONNX | Hugging Face | nodes | MB |")
    print("|---|---|---|---|---|---|---|")
    for name, noise in RECIPES.items():
        print(_row(name, noise), flush=True)


def _row(name: str, noise: float) -> str:
    import onnx

    trained = _small_model(name, noise)
    with tempfile.TemporaryDirectory() as scratch:
        graphs, folder = Path(scratch) / "onnx", Path(scratch) / "hf"
        found = write_onnx(trained, graphs, GraphOptions())
        nodes = len(onnx.load(graphs / STEP, load_external_data=False).graph.node)
        hf = write_hf(trained, folder)
    kind = trained.settings["family"]
    cells = [
        f"{kind}, `{name}`",
        f"{found.parameters / 1e6:.2f}M",
        f"{_largest_logit(trained):.1f}",
        f"{found.largest_difference:.1e}",
        f"{hf.largest_difference:.1e}",
        f"{nodes}",
        f"{found.size_bytes / 1e6:.1f}",
    ]
    return f"| {' | '.join(cells)} |"


@torch.no_grad()
def _largest_logit(trained: Trained) -> float:
    model = trained.model
    tokens_1T = torch.randint(trained.vocab.size, (1, TOKENS))
    out: Output = model(tokens_1T, model.initial_state(1, inference=True))
    return float(model.head.logits(out.hidden_BTD).abs().max())


def _small_model(name: str, noise: float) -> Trained:
    """A recipe's model, smaller, with lively weights."""
    torch.manual_seed(0)
    run = recipe(name)
    config = run.model.smaller(LIMIT)
    run = replace(run, model=config)
    family = next(each for each in FAMILIES.values() if each.config is type(config))
    model = family.model(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(noise * torch.randn_like(parameter))
        model.after_step()
    return Trained(
        model=model.eval(),
        vocab=SymbolVocab(bytes(range(config.vocab_size))),
        settings=to_json(run),
        results={},
        records={},
        checkpoint="best",
        step=0,
    )


if __name__ == "__main__":
    main()
