"""Where a model's attention looks, and how far back its memory is of use.

Axes: T queries, S keys, N distances back from a query, K buckets of distances.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from sparing.data.vocab import Vocab
from sparing.device import Hardware
from sparing.errors import UserError
from sparing.evaluate.context import buckets
from sparing.evaluate.window import measuring, on_device
from sparing.models.api import LanguageModel, Output, State, size_bytes
from sparing.plot.figure import GREY, dress, new_figure, pen, plain, small_print

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

READ = 256
"""Tokens read at a time before the first query."""
ASKED = 16
"""Queries at a time: a segment's own tokens take room from the memory, so they should be few."""
ROOM = 160
"""Tokens that can be written side by side under a picture."""
SIGNS = {"\n": "↵", "\t": "→", " ": "␣", "\r": "␍"}

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Focus:
    """Attention of consecutive queries, layer by layer."""

    tokens: list[str]
    """The token each query has just read."""
    context: int
    """Tokens read before the first query."""
    weights: dict[int, Array]
    """Of each attending layer, (T, N): weight put n positions back; NaN where there was nothing."""


def look(
    model: LanguageModel, vocab: Vocab, ids: npt.NDArray[Any], hardware: Hardware, queries: int
) -> Focus:
    """Read `ids` until the memory is full, then watch the next `queries` tokens."""
    focus = getattr(model, "focus", None)
    if focus is None:
        raise UserError("this model family has no picture of its attention")
    if queries < 1 or len(ids) < 1:
        raise UserError(f"need at least one token to look from, not {min(queries, len(ids))}")
    queries = min(queries, len(ids))
    found: dict[int, list[Array]] = {}
    with measuring(model, hardware):
        state, context = _filled(model, ids, len(ids) - queries)
        asked = ids[context : context + queries]
        for piece_BT in _pieces(model, asked, ASKED):
            for layer, weights_BTS in focus(piece_BT, state).items():
                found.setdefault(layer, []).append(by_distance(_array(weights_BTS[0])))
            state = _after(model, piece_BT, state)
    if not found:
        raise UserError("no layer of this model attends to a memory; there is nothing to draw")
    weights = {layer: _stacked(parts) for layer, parts in found.items()}
    return Focus([visible(vocab.token_bytes(int(id))) for id in asked], context, weights)


def by_distance(weights_TS: Array) -> Array:
    """Weights (T, N) by distance back instead of by key; the last T keys are the queries' own."""
    queries, keys = weights_TS.shape
    own_T1 = np.arange(keys - queries, keys)[:, None]
    key_TN = own_T1 - np.arange(keys)[None, :]
    weights_TN = np.take_along_axis(weights_TS, key_TN.clip(0), axis=1)
    return np.where(key_TN >= 0, weights_TN, np.nan)


def distance_buckets(reach: int) -> list[tuple[int, int]]:
    """Ranges that cover the distances 0 to `reach` - 1, two to each doubling."""
    return [(0, 0), *(buckets(reach - 1) if reach > 1 else [])]


def strongest(weights_TN: Array) -> Array:
    """The largest single weight (T, K) in each bucket; NaN where a query had no key in it.

    Unlike a sum it does not grow with the bucket, so that even attention shows as a flat picture.
    """
    lows = [low for low, _ in distance_buckets(weights_TN.shape[1])]
    # fmax takes the number where there is one.
    return np.asarray(np.fmax.reduceat(weights_TN, lows, axis=1))


def memory_use(weights_TN: Array) -> Array:
    """Mean attention (K) that queries spend on each bucket; it sums to 1."""
    lows = [low for low, _ in distance_buckets(weights_TN.shape[1])]
    total_TK = np.add.reduceat(np.nan_to_num(weights_TN), lows, axis=1)
    return np.asarray(total_TK.mean(axis=0))


def even(weights_TN: Array) -> Array:
    """The weights (T, N) of a head that looks at everything alike."""
    there_TN = np.isfinite(weights_TN)
    return np.where(there_TN, 1 / there_TN.sum(axis=1, keepdims=True), np.nan)


def visible(token: bytes) -> str:
    """A token as one may read it on an axis, white space and all."""
    text = token.decode("utf-8", errors="replace")
    return "".join(SIGNS.get(c, c if c.isprintable() else "□") for c in text)


def draw_focus(focus: Focus, title: str, origin: str) -> "Figure":
    """A trial map per layer: text from left to right, distance back from bottom to top."""
    layers = sorted(focus.weights)
    top = max(float(np.nanmax(weights_TN)) for weights_TN in focus.weights.values())
    figure = new_figure(14, 1.6 + 2.6 * len(layers))
    for row, layer in enumerate(layers, start=1):
        axes = figure.add_subplot(len(layers), 1, row)
        _draw_heat(axes, focus.weights[layer], top)
        axes.set_title(f"block {layer}", loc="left", fontsize=10)
        _write_text(axes, focus.tokens, last=row == len(layers))
    axes.set_xlabel(f"token read by the query, after {focus.context:,} others", fontsize=10)
    figure.suptitle(plain(f"Attention of {title}"), x=0.01, ha="left", fontsize=12, weight="bold")
    about = "colour: largest single weight among the keys at that distance; grey: no key there"
    small_print(figure, [origin, about])
    return figure


def draw_memory_use(focus: Focus, title: str, origin: str) -> "Figure":
    """Mean attention against distance back, one line per attending layer."""
    figure = new_figure(9.5, 5.2)
    axes = figure.add_subplot()
    longest = max(focus.weights.values(), key=lambda weights_TN: weights_TN.shape[1])
    for index, (layer, weights_TN) in enumerate(sorted(focus.weights.items())):
        share_K = 100 * memory_use(weights_TN)
        axes.plot(
            _centres(share_K), share_K, **pen(index), marker="o", ms=4, label=f"block {layer}"
        )
    even_K = 100 * memory_use(even(longest))
    axes.plot(_centres(even_K), even_K, color=GREY, linestyle=":", label="looking everywhere alike")
    dress(axes, x="distance back (tokens, two buckets to a doubling)", y="mean attention (%)")
    _number_distances(axes.xaxis, longest.shape[1])
    axes.set_ylim(bottom=0)
    figure.legend(loc="outside right upper", frameon=False, fontsize=9)
    axes.set_title(plain(f"Memory use of {title}"), loc="left", fontsize=12, fontweight="bold")
    about = f"mean of {len(focus.tokens):,} queries after {focus.context:,} tokens of context"
    small_print(figure, [origin, about])
    return figure


def _filled(model: LanguageModel, ids: npt.NDArray[Any], limit: int) -> tuple[State, int]:
    """The state once reading on would not make it larger, and the number of tokens read."""
    state, read = model.initial_state(1, inference=True), 0
    while read < limit:
        before, piece = size_bytes(state), ids[read : min(read + READ, limit)]
        for piece_BT in _pieces(model, piece, READ):
            state = _after(model, piece_BT, state)
        read += len(piece)
        if size_bytes(state) == before:
            break
    return state, read


def _pieces(model: LanguageModel, ids: npt.NDArray[Any], length: int) -> Iterator[Tensor]:
    for begin in range(0, len(ids), length):
        yield on_device(ids[None, begin : begin + length].astype(np.int64), model.device)


def _after(model: LanguageModel, tokens_BT: Tensor, state: State) -> State:
    out: Output = model(tokens_BT, state)
    return out.state


def _array(weights_TS: Tensor) -> Array:
    return np.asarray(weights_TS.double().cpu().numpy())


def _stacked(parts: Sequence[Array]) -> Array:
    """Queries of all pieces, each row as long as the longest."""
    reach = max(part.shape[1] for part in parts)
    wide = [np.pad(p, ((0, 0), (0, reach - p.shape[1])), constant_values=np.nan) for p in parts]
    return np.concatenate(wide)


def _draw_heat(axes: "Axes", weights_TN: Array, top: float) -> None:
    """Dark is the weight of a head that looks everywhere alike, bright `top` or ten times that."""
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import LogLocator

    reach = weights_TN.shape[1]
    alike = min(1 / reach, 0.1)
    mesh = axes.pcolormesh(
        100 * strongest(weights_TN).T.clip(alike),
        norm=LogNorm(100 * alike, 100 * max(top, 10 * alike)),
        cmap="viridis",
        rasterized=True,
    )
    axes.set_facecolor("#dddddd")
    bar = axes.figure.colorbar(mesh, ax=axes, pad=0.01, format="{x:g}")
    bar.set_ticks(LogLocator(subs=(1, 2, 5)))
    bar.minorticks_off()
    bar.set_label("attention weight (%)", fontsize=9)
    axes.set_ylabel("distance back (tokens)", fontsize=10)
    _number_distances(axes.yaxis, reach)


def _centres(share_K: Array) -> Array:
    return np.arange(len(share_K), dtype=np.float64) + 0.5


def _number_distances(axis: Any, reach: int) -> None:
    """Ticks at 0, the powers of two and the end, on an axis counted in buckets."""
    highs = [high for _, high in distance_buckets(reach)]
    places = [place for place, high in enumerate(highs) if high & (high - 1) == 0]
    if len(highs) - 1 > places[-1] + 1:
        places.append(len(highs) - 1)
    axis.set_ticks([place + 0.5 for place in places], [f"{highs[place]:,}" for place in places])
    axis.set_tick_params(labelsize=8)


def _write_text(axes: "Axes", tokens: Sequence[str], *, last: bool) -> None:
    """The text itself under the last axis, where there is room for it."""
    if len(tokens) > ROOM:
        return
    names = [plain(token[:12]) if last else "" for token in tokens]
    turned = any(len(token) > 1 for token in tokens)
    places = [place + 0.5 for place in range(len(tokens))]
    axes.set_xticks(places, names, family="DejaVu Sans Mono", rotation=90 if turned else 0)
    axes.tick_params(axis="x", labelsize=8, length=0)
