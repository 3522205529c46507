"""The model card of an exported folder: what it is, how to use it, figures and their protocol."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sparing import __version__

USE = """\
```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained(FOLDER, trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained(FOLDER, trust_remote_code=True)
inputs = tokenizer(["A text to continue"], return_tensors="pt", padding=True)
written = model.generate(**inputs, max_new_tokens=100, do_sample=True)
print(tokenizer.batch_decode(written, skip_special_tokens=True))
```

It needs Transformers 5.12 or newer. `trust_remote_code` runs the Python files of this folder. They
are those of `sparing` {version} (MIT) that this model needs; `sparing` itself need not be
installed. `past_key_values` holds what the model carries: any length of text, at bounded size. Pad
batches on the left.
"""
COLUMNS = {
    "bits per byte": "bits_per_byte",
    "bytes": "bytes",
    "protocol": "protocol",
    "read as": "how",
    "precision": "precision",
    "weights": "weights",
}


def model_card(
    settings: Mapping[str, Any],
    results: Mapping[str, Any],
    *,
    parameters: int,
    step: int,
    checkpoint: str,
) -> str:
    """Return the text of README.md; `settings` are those of the run, as they are stored."""
    data, tokens = settings["data"], settings["model"]["vocab_size"]
    lines = [
        "---",
        "library_name: transformers",
        "pipeline_tag: text-generation",
        "tags: [sparing, language-model]",
        "---",
        "",
        f"# {settings['recipe']}",
        "",
        f"A language model of the family `{settings['family']}` with {parameters:,} parameters.",
        f"Trained on {Path(data['corpus']).name} as {data['vocab']} ({tokens:,} different ones).",
        f"These are the weights of checkpoint `{checkpoint}`, step {step:,}.",
        "",
        USE.format(version=__version__),
        "## Figures",
        "",
        *_figures(results),
    ]
    return "\n".join(lines) + "\n"


def _figures(results: Mapping[str, Any]) -> Iterator[str]:
    rows = {name: entry for name, entry in results.items() if "bits_per_byte" in entry}
    if not rows:
        yield "None were measured before the export; `sparing evaluate RUN` measures them."
        return
    known = {key for row in rows.values() for key, value in row.items() if value}
    used = {title: key for title, key in COLUMNS.items() if key in known}
    yield f"| text | {' | '.join(used)} |"
    yield f"|---|{'---|' * len(used)}"
    for name, row in rows.items():
        yield f"| {name} | {' | '.join(_cell(row.get(key)) for key in used.values())} |"


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    return f"{value:,}" if isinstance(value, int) else str(value or "")
