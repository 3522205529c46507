"""A trained model in Python: generate, score, look inside, continue from any point.

Text is `str`, or `bytes` where a prompt is given as bytes; then the result is bytes too.
Axes: T tokens, V vocabulary, D dim, S positions looked at.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, TypedDict, TypeVar, Unpack, get_type_hints, overload

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sparing.arguments import check_arguments, fitting
from sparing.compress.compressor import Compressor
from sparing.compress.lanes import Learning
from sparing.data.text import encode_text
from sparing.data.vocab import Vocab
from sparing.device import Hardware
from sparing.errors import UserError, unknown_name
from sparing.evaluation.score import TextScore, score_texts, to_text_score
from sparing.generate.compiled import compile_step
from sparing.generate.decode import GenerationConfig
from sparing.generate.sampling import SamplingConfig
from sparing.generate.text import (
    BYTES,
    Continuation,
    TextState,
    check_after,
    complete,
    for_bytes,
    read_text,
    stream_text,
)
from sparing.models.api import LanguageModel, Output, State, eval_mode
from sparing.runs.config import RunConfig
from sparing.runs.costs import costs
from sparing.runs.folder import RunFolder, load_model

Text = TypeVar("Text", str, bytes)
CHUNK = GenerationConfig().chunk


class GenerationOptions(TypedDict, total=False):
    """Options of `LM.generate` and `LM.stream`."""

    length: int
    """Tokens to write; 256 by default."""
    temperature: float
    """Divisor of the logits, 1 by default; 0 always takes the most probable token."""
    top_k: int
    """Keep the k most probable tokens."""
    top_p: float
    """Keep the smallest set of most probable tokens with at least this probability."""
    min_p: float
    """Keep tokens whose probability is at least this fraction of the highest."""
    seed: int
    """The same seed gives the same text; 0 by default."""
    stop: str | Sequence[str]
    """Strings that end the text and are not part of it."""


def open_lm(folder: RunFolder, hardware: Hardware, checkpoint: str | None = None) -> "LM":
    """Load the model of a run folder."""
    model = load_model(folder, hardware, checkpoint)
    return LM(model, folder.vocab(), folder.config(), hardware, folder)


class LM:
    """A trained language model with its vocabulary."""

    def __init__(
        self,
        model: LanguageModel,
        vocab: Vocab,
        config: RunConfig,
        hardware: Hardware,
        folder: RunFolder | None = None,
    ) -> None:
        self.model, self.vocab, self.config, self.hardware = model, vocab, config, hardware
        self.folder = folder
        """The run it was loaded from, if any."""

    def __repr__(self) -> str:
        count = self.costs["parameters"]["deployed"]
        return f"LM({self.config.recipe!r}, {count:,} parameters, {self.model.device})"

    @cached_property
    def costs(self) -> dict[str, Any]:
        """Parameters, FLOPs and state, as `sparing info` counts them."""
        return costs(self.config)

    @overload
    def generate(
        self,
        prompt: Text = ...,
        *,
        after: TextState | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Text: ...
    @overload
    def generate(self, prompt: list[str], **options: Unpack[GenerationOptions]) -> list[str]: ...
    @overload
    def generate(
        self, prompt: list[bytes], **options: Unpack[GenerationOptions]
    ) -> list[bytes]: ...
    def generate(
        self,
        prompt: str | bytes | list[str] | list[bytes] = "",
        *,
        after: TextState | None = None,
        **options: Unpack[GenerationOptions],
    ) -> str | bytes | list[str] | list[bytes]:
        """Return what the model writes after the prompt, or after each of several prompts.

        Prompt i of several uses `seed` + i. `after` puts the prompt after a text that was read
        before (see `state`).
        """
        if isinstance(prompt, str):
            return "".join(self.stream(prompt, after=after, **options))
        if isinstance(prompt, bytes):
            return b"".join(self.stream(prompt, after=after, **options))
        if not isinstance(prompt, list | tuple):
            raise TypeError(f"a prompt is str, bytes or a list, not {type(prompt).__name__}")
        if after is not None:
            raise UserError("`after` continues one text; give one prompt")
        prompts, config = [_encode(each) for each in prompt], generation_config(**options)
        if len({isinstance(each, bytes) for each in prompt}) > 1:
            raise TypeError("prompts are all str or all bytes, and so is what comes back")
        common = self.model, self.vocab, prompts
        if not any(isinstance(each, bytes) for each in prompt):
            return [done.text for done in complete(*common, config, self.hardware)]
        found = complete(*common, for_bytes(config), self.hardware, encoding=BYTES)
        return [done.text.encode(BYTES) for done in found]

    @overload
    def stream(
        self,
        prompt: str = "",
        *,
        after: TextState | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Iterator[str]: ...
    @overload
    def stream(
        self,
        prompt: bytes,
        *,
        after: TextState | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Iterator[bytes]: ...
    def stream(
        self,
        prompt: str | bytes = "",
        *,
        after: TextState | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Iterator[str] | Iterator[bytes]:
        """Yield what the model writes after the prompt, piece by piece. See `generate`."""
        config, read = generation_config(**options), self.state(prompt, after=after)
        if isinstance(prompt, str):
            return stream_text(self.model, self.vocab, read, config, self.hardware)
        return iter(Continuation(self.model, self.vocab, read, config, self.hardware))

    def state(self, text: str | bytes, *, after: TextState | None = None) -> TextState:
        """Read a text and return what the model carries from it.

        Pass the result as `after` to any other method. It never changes, so several continuations
        can start from it.
        """
        return read_text(self.model, self.vocab, _encode(text), self.hardware, after=after)

    def compile(self) -> "LM":
        """Compile the model for `generate` and `stream` on a CPU, and return it.

        Compiling takes a minute or two and a C++ compiler; the code is cached, and loads in an
        instant later. Reading, scoring and looking inside do not change, and neither do the texts,
        up to rounding.
        """
        if self.hardware.precision != "float32":
            raise UserError(f"compiled code computes in float32, not in {self.hardware.precision}")
        compile_step(self.model)
        return self

    def score(
        self, texts: str | bytes | Iterable[str | bytes], *, after: TextState | None = None
    ) -> list[TextScore]:
        """Return the log-probability and the bits per byte of each text, independently.

        With `after`, the probability of each text as the continuation of what was read.
        """
        check_after(after, self.model)
        check_arguments(LM.score, locals())
        given = [texts] if isinstance(texts, str | bytes) else texts
        encoded = [_encode(text) for text in given]
        if after is None:
            return score_texts(self.model, self.vocab, encoded, self.hardware)
        return [self._score_after(text, after) for text in encoded]

    def logits(self, text: str | bytes, *, after: TextState | None = None) -> Tensor:
        """Return the logits (T, V) of the token that follows each token of the text."""
        with eval_mode(self.model, self.hardware):
            return self.model.head.logits(self._last_layer(text, after)).float()

    def hidden(self, text: str | bytes, *, after: TextState | None = None) -> Tensor:
        """Return the last layer's vectors (T, D) at each token of the text."""
        if not self.model.shows_hidden:
            raise UserError("an ONNX export cannot show hidden vectors; load the run itself")
        with eval_mode(self.model, self.hardware):
            return self._last_layer(text, after)

    def attention(
        self, text: str | bytes, *, after: TextState | None = None
    ) -> list[dict[int, Tensor]]:
        """Return attention weights by layer, for each token of the text one dict.

        Weights (H, S) are of the positions looked at, oldest first; the last is the token itself.
        For SHA-RNN, and for the blocks of stacks and super-nets with learned spans or one head.
        """
        found = list[dict[int, Tensor]]()
        with eval_mode(self.model, self.hardware):
            for tokens_1T, state, _ in self._read(text, after, chunk=1):
                weights = self.attention_weights(tokens_1T, state)
                found.append({layer: each_1HTS[0, :, 0] for layer, each_1HTS in weights.items()})
        return found

    def compress(self, data: bytes, *, lanes: int | None = None, learn: bool = False) -> bytes:
        """Return `data` as `sparing compress` writes it into a file; see docs/compress.md.

        More `lanes` are faster but take more bits; None chooses by size. With `learn` the model
        adapts to the text while coding, which takes about three times as long.
        """
        check_arguments(LM.compress, locals())
        learning = Learning() if learn else None
        return self._compressor().compress(data, lanes=lanes, learning=learning)

    def decompress(self, blob: bytes) -> bytes:
        """Return the bytes that `compress` was given, or raise a UserError."""
        check_arguments(LM.decompress, locals())
        return self._compressor().decompress(blob)

    def _compressor(self) -> Compressor:
        return Compressor(self.model, self.vocab, Hardware(self.hardware.device, "float32"))

    def attention_weights(self, tokens_1T: Tensor, state: State) -> dict[int, Tensor]:
        """Return the weights (1, H, T, S) of some tokens by layer, read from `state` on."""
        if found := self.model.attention_weights(tokens_1T, state):
            return found
        raise UserError(f"this {self.config.family} model cannot show its attention")

    def _last_layer(self, text: str | bytes, after: TextState | None) -> Tensor:
        return torch.cat([out.hidden_BTD[0] for _, _, out in self._read(text, after)])

    def _read(
        self, text: str | bytes, after: TextState | None, chunk: int = CHUNK
    ) -> Iterator[tuple[Tensor, State, Output]]:
        """Yield each chunk of the text, the state before it, and what the model made of it."""
        ids = self._ids(_encode(text))
        check_after(after, self.model)
        state = (self.state("") if after is None else after).state
        for tokens_1T in torch.split(torch.from_numpy(ids).to(self.model.device)[None], chunk, 1):
            out = self.model(tokens_1T, state)
            yield tokens_1T, state, out
            state = out.state

    def _score_after(self, text: bytes, after: TextState) -> TextScore:
        ids = self._ids(text)
        logits_TV = torch.cat([after.logits_1V.float(), self.logits(text, after=after)[:-1]])
        targets_T = torch.from_numpy(ids).to(logits_TV.device)
        nats_T = F.cross_entropy(logits_TV, targets_T, reduction="none")
        return to_text_score(self.vocab, text, ids, nats_T.double().cpu().numpy())

    def _ids(self, text: bytes) -> "np.ndarray[Any, np.dtype[np.int64]]":
        ids = self.vocab.encode(text).astype(np.int64)
        if len(ids) == 0:
            raise UserError("the text is empty")
        return ids


def generation_config(**options: Unpack[GenerationOptions]) -> GenerationConfig:
    """Return the options of `LM.generate` as one value, or raise a TypeError or a UserError."""
    known = get_type_hints(GenerationOptions)
    for name in options.keys() - known.keys():
        raise TypeError(unknown_name("option", name, known))
    given: dict[str, Any] = {
        name: fitting(name, value, known[name]) for name, value in options.items()
    }
    length, stop = given.pop("length", GenerationConfig().length), given.pop("stop", ())
    strings = (stop,) if isinstance(stop, str) else tuple(stop)
    if not all(isinstance(each, str) for each in strings):
        raise TypeError("`stop` is a str or several, also where the prompt is bytes")
    return GenerationConfig(length=length, stop=strings, sampling=SamplingConfig(**given))


def _encode(text: str | bytes) -> bytes:
    if not isinstance(text, str | bytes):
        raise TypeError(f"a text is str or bytes, not {type(text).__name__}")
    return text if isinstance(text, bytes) else encode_text(text)
