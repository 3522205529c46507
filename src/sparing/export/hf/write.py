"""From a trained model to an exported folder that has been loaded again and compared."""

import copy
from pathlib import Path

from sparing.errors import UserError
from sparing.export.card import model_card
from sparing.export.hf.card import USE
from sparing.export.hf.check import check_folder
from sparing.export.hf.folder import write_folder
from sparing.export.trained import Exported, Trained, new_folder


def write_hf(trained: Trained, out: Path) -> Exported:
    """Write a model to the new folder `out`, for Hugging Face Transformers."""
    segment = trained.settings["evaluate"]["segment"]
    collapsed = copy.deepcopy(trained.model)
    collapsed.collapse()
    parameters = sum(weight.numel() for weight in collapsed.parameters())
    card = model_card(trained, library="transformers", use=USE, parameters=parameters)
    with new_folder(out) as scratch:
        write_folder(scratch, collapsed, trained.vocab, segment=segment)
        (scratch / "README.md").write_text(card, encoding="utf-8")
        difference = check_folder(scratch, trained.model, trained.vocab, segment=segment)
        sizes = [path.stat().st_size for path in scratch.iterdir()]
    return Exported(len(sizes), sum(sizes), parameters, difference)


def require_transformers() -> None:
    """Refuse, before any work, to export without the library that checks the result."""
    try:
        import transformers  # noqa: F401  # only whether it is there
    except ImportError:
        raise UserError("--format hf needs Transformers: pip install 'sparing[hf]'") from None
