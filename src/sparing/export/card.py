"""The model card of an exported folder: what it is, how to use it, figures and their protocol."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sparing.export.trained import Trained

COLUMNS = {
    "bits per byte": "bits_per_byte",
    "bytes": "bytes",
    "protocol": "protocol",
    "read as": "how",
    "precision": "precision",
    "weights": "weights",
}


def model_card(trained: Trained, *, library: str, use: str, parameters: int) -> str:
    """Return the text of README.md.

    `library` is what loads the folder, by the name that model hubs have for it; `use` says how.
    """
    settings = trained.settings
    data, tokens = settings["data"], settings["model"]["vocab_size"]
    lines = [
        "---",
        f"library_name: {library}",
        "pipeline_tag: text-generation",
        "tags: [sparing, language-model]",
        "---",
        "",
        f"# {settings['recipe']}",
        "",
        f"A language model of the family `{settings['family']}` with {parameters:,} parameters.",
        f"Trained on {Path(data['corpus']).name} as {data['vocab']} ({tokens:,} different ones).",
        f"These are the weights of checkpoint `{trained.checkpoint}`, step {trained.step:,}.",
        "",
        use,
        "## Figures",
        "",
        *_figures(trained.results),
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
