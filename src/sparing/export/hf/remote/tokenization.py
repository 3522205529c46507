"""A vocabulary of this package as Transformers expects it."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizer

from sparing.data.vocab import vocab_from_json

VOCAB_FILE = "sparing_vocab.json"


class SparingTokenizer(PreTrainedTokenizer):
    """Text to ids and back, exactly as the model was trained.

    Bytes that are not UTF-8 go in as `bytes.decode("utf-8", "surrogateescape")` gives them, and
    come out as `errors` says. The token before a text (a line end, if there is one) is an ordinary
    one, which `skip_special_tokens` keeps. It also ends texts and pads them, except among bytes:
    there the byte 0 does, which no text contains and `skip_special_tokens` skips.
    """

    vocab_files_names = {"vocab_file": VOCAB_FILE}  # noqa: RUF012  # not ours to annotate
    model_input_names = ["input_ids", "attention_mask"]  # noqa: RUF012

    def __init__(self, vocab_file: str, errors: str = "replace", **others: Any) -> None:
        self.vocab_file, self.errors = vocab_file, errors
        self.trained = vocab_from_json(json.loads(Path(vocab_file).read_text(encoding="utf-8")))
        self._ids = dict[str, int]()
        for id in range(self.trained.size):
            token = self.trained.token_bytes(id).decode("latin-1")
            # Two pieces may stand for the same bytes.
            self._ids[f"<{id}>" if not token or token in self._ids else token] = id
        self._tokens = list(self._ids)
        self._end = 0 if self.trained.kind == "bytes" else self.trained.start
        others.setdefault("bos_token", self._tokens[self.trained.start])
        for role in ("eos_token", "pad_token"):
            others.setdefault(role, self._tokens[self._end])
        others.setdefault("padding_side", "left")
        super().__init__(errors=errors, **others)

    @property
    def vocab_size(self) -> int:
        """Number of ids."""
        return self.trained.size

    @property
    def all_special_ids(self) -> list[int]:
        """The end and padding, unless it is ordinary text like all else."""
        return [] if self._end == self.trained.start else [self._end]

    def get_vocab(self) -> dict[str, int]:
        """Return ids by token; the characters of a token are its bytes."""
        return dict(self._ids)

    def tokenize(self, text: str, **others: Any) -> list[str]:
        """Return the tokens of a text."""
        ids = self.trained.encode(text.encode("utf-8", "surrogateescape"))
        return [self._tokens[id] for id in ids.tolist()]

    def _convert_token_to_id(self, token: str) -> int | None:
        # Programs ask in this way whether there is such a token.
        return self._ids.get(token)

    def _convert_id_to_token(self, index: int) -> str:
        return self._tokens[index]

    def convert_tokens_to_string(self, tokens: Sequence[str]) -> str:
        """Return the text of tokens."""
        return self.trained.decode([self._ids[token] for token in tokens]).decode(
            "utf-8", self.errors
        )

    def _decode(
        self, token_ids: int | Sequence[int], skip_special_tokens: bool = False, **others: Any
    ) -> str:
        ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        if skip_special_tokens:
            ids = [id for id in ids if id not in self.all_special_ids]
        return self.trained.decode(ids).decode("utf-8", self.errors)

    def save_vocabulary(self, folder: str, filename_prefix: str | None = None) -> tuple[str]:
        """Copy the vocabulary's file."""
        prefix = f"{filename_prefix}-" if filename_prefix else ""
        path = Path(folder) / f"{prefix}{VOCAB_FILE}"
        if path.resolve() != Path(self.vocab_file).resolve():
            shutil.copyfile(self.vocab_file, path)
        return (str(path),)
