"""Where a model's attention looks, and how far back it uses its memory.

Axes: H heads, T queries, S keys, N distances back from a query, K buckets of distances.
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
from sparing.evaluation.context import context_buckets
from sparing.evaluation.memory import fill_memory
from sparing.evaluation.window import to_device
from sparing.models.api import LanguageModel, Output, State, eval_mode
from sparing.plot.figure import GREY, add_footer, drawable_text, label_axes, line_style, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

READ = 256
"""Tokens read at a time before the first query."""
QUERIES = 16
"""Queries at a time. They take space in the window from the memory, so they should be few."""
MAX_TOKENS = 160
"""Most tokens that can be written side by side under a picture."""
FEW = 8
"""Heads up to which each has a tall heat map."""
SIGNS = {"\n": "↵", "\t": "→", " ": "␣", "\r": "␍"}

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Focus:
    """Attention of consecutive queries, by layer and head."""

    tokens: list[str]
    """The token each query has just read."""
    context: int
    """Tokens read before the first query."""
    weights: dict[int, Array]
    """Weights (H, T, N) of each attending layer by distance back; NaN where there is no key."""


def record_attention(
    model: LanguageModel, vocab: Vocab, ids: npt.NDArray[Any], hardware: Hardware, queries: int
) -> Focus:
    """Read `ids` until the memory is full, then record attention of the next `queries` tokens."""
    if queries < 1 or len(ids) < 1:
        raise UserError(f"need at least one token to draw, not {min(queries, len(ids))}")
    queries = min(queries, len(ids))
    found: dict[int, list[Array]] = {}
    with eval_mode(model, hardware):
        state = model.initial_state(1, inference=True)
        if not model.attention_weights(next(_split(model, ids, 1)), state):
            raise UserError("no layer of this model can show where it attends")
        state, context = fill_memory(model, _split(model, ids[: len(ids) - queries], READ), state)
        watched = ids[context : context + queries]
        for part_BT in _split(model, watched, QUERIES):
            for layer, weights_BHTS in model.attention_weights(part_BT, state).items():
                by_distance = [weights_by_distance(_array(head_TS)) for head_TS in weights_BHTS[0]]
                found.setdefault(layer, []).append(np.stack(by_distance))
            state = _after(model, part_BT, state)
    weights = {layer: _stack(parts) for layer, parts in found.items()}
    return Focus([printable(vocab.token_bytes(int(id))) for id in watched], context, weights)


def weights_by_distance(weights_TS: Array) -> Array:
    """Weights (T, N) by distance back instead of by key; the last T keys are the queries' own."""
    queries, keys = weights_TS.shape
    own_T1 = np.arange(keys - queries, keys)[:, None]
    key_TN = own_T1 - np.arange(keys)[None, :]
    weights_TN = np.take_along_axis(weights_TS, key_TN.clip(0), axis=1)
    return np.where(key_TN >= 0, weights_TN, np.nan)


def distance_buckets(reach: int) -> list[tuple[int, int]]:
    """Ranges that cover the distances 0 to `reach` - 1, two for each doubling."""
    return [(0, 0), *(context_buckets(reach - 1) if reach > 1 else [])]


def max_weights(weights_TN: Array) -> Array:
    """The largest single weight (T, K) in each bucket; NaN where a query had no key in it.

    Unlike a sum it does not grow with the bucket, so uniform attention gives a flat picture.
    """
    lows = [low for low, _ in distance_buckets(weights_TN.shape[1])]
    # fmax ignores NaN.
    return np.asarray(np.fmax.reduceat(weights_TN, lows, axis=1))


def memory_use(weights_TN: Array) -> Array:
    """Mean attention (K) that queries spend on each bucket; it sums to 1."""
    lows = [low for low, _ in distance_buckets(weights_TN.shape[1])]
    total_TK = np.add.reduceat(np.nan_to_num(weights_TN), lows, axis=1)
    return np.asarray(total_TK.mean(axis=0))


def uniform_weights(weights_TN: Array) -> Array:
    """The weights (T, N) of a head that attends to all keys equally."""
    there_TN = np.isfinite(weights_TN)
    return np.where(there_TN, 1 / there_TN.sum(axis=1, keepdims=True), np.nan)


def printable(token: bytes) -> str:
    """A token as text for an axis, with signs for white space."""
    text = token.decode("utf-8", errors="replace")
    return "".join(SIGNS.get(c, c if c.isprintable() else "□") for c in text)


def draw_focus(focus: Focus, title: str, origin: str) -> "Figure":
    """A heat map per head: text from left to right, distance back from bottom to top."""
    heads = [
        (_head_name(layer, head, len(weights_HTN)), weights_TN)
        for layer, weights_HTN in sorted(focus.weights.items())
        for head, weights_TN in enumerate(weights_HTN)
    ]
    top = max(float(np.nanmax(weights_TN)) for _, weights_TN in heads)
    figure = new_figure(14, 1.6 + (2.6 if len(heads) <= FEW else 1.6) * len(heads))
    for row, (name, weights_TN) in enumerate(heads, start=1):
        axes = figure.add_subplot(len(heads), 1, row)
        _draw_weights(axes, weights_TN, top)
        axes.set_title(name, loc="left", fontsize=10)
        _write_text(axes, focus.tokens, last=row == len(heads))
    axes.set_xlabel(f"token read by the query, after {focus.context:,} others", fontsize=10)
    figure.suptitle(
        drawable_text(f"Attention of {title}"), x=0.01, ha="left", fontsize=12, weight="bold"
    )
    about = "colour: largest single weight among the keys at that distance; grey: no key there"
    add_footer(figure, [origin, about])
    return figure


def draw_memory_use(focus: Focus, title: str, origin: str) -> "Figure":
    """Mean attention against distance back: a line per head, those of a layer in one style."""
    figure = new_figure(9.5, 5.2)
    axes = figure.add_subplot()
    longest_TN = max((each_HTN[0] for each_HTN in focus.weights.values()), key=np.size)
    for index, (layer, weights_HTN) in enumerate(sorted(focus.weights.items())):
        for head, weights_TN in enumerate(weights_HTN):
            share_K = 100 * memory_use(weights_TN)
            name = None if head else f"block {layer}"
            style = line_style(index) | {"marker": "o", "ms": 4}
            axes.plot(_centres(share_K), share_K, label=name, **style)
    even_K = 100 * memory_use(uniform_weights(longest_TN))
    axes.plot(_centres(even_K), even_K, color=GREY, linestyle=":", label="uniform attention")
    label_axes(axes, x="distance back (tokens, two buckets to a doubling)", y="mean attention (%)")
    _number_distances(axes.xaxis, longest_TN.shape[1])
    axes.set_ylim(bottom=0)
    figure.legend(loc="outside right upper", frameon=False, fontsize=9)
    axes.set_title(
        drawable_text(f"Memory use of {title}"), loc="left", fontsize=12, fontweight="bold"
    )
    about = f"mean of {len(focus.tokens):,} queries after {focus.context:,} tokens of context"
    add_footer(figure, [origin, about])
    return figure


def _head_name(layer: int, head: int, heads: int) -> str:
    return f"block {layer}" if heads == 1 else f"block {layer}, head {head}"


def _split(model: LanguageModel, ids: npt.NDArray[Any], length: int) -> Iterator[Tensor]:
    for begin in range(0, len(ids), length):
        yield to_device(ids[None, begin : begin + length].astype(np.int64), model.device)


def _after(model: LanguageModel, tokens_BT: Tensor, state: State) -> State:
    out: Output = model(tokens_BT, state)
    return out.state


def _array(weights_TS: Tensor) -> Array:
    return np.asarray(weights_TS.double().cpu().numpy())


def _stack(parts: Sequence[Array]) -> Array:
    """Queries (H, T, N) of all parts, each row as long as the longest."""
    reach = max(part.shape[2] for part in parts)
    before = ((0, 0), (0, 0))
    wide = [np.pad(p, (*before, (0, reach - p.shape[2])), constant_values=np.nan) for p in parts]
    return np.concatenate(wide, axis=1)


def _draw_weights(axes: "Axes", weights_TN: Array, top: float) -> None:
    """Colours from the weight of uniform attention (dark) to `top`, at least ten times as much."""
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import LogLocator

    reach = weights_TN.shape[1]
    uniform = min(1 / reach, 0.1)
    mesh = axes.pcolormesh(
        100 * max_weights(weights_TN).T.clip(uniform),
        norm=LogNorm(100 * uniform, 100 * max(top, 10 * uniform)),
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
    """Write the tokens under the last axis if they fit."""
    if len(tokens) > MAX_TOKENS:
        return
    names = [drawable_text(token[:12]) if last else "" for token in tokens]
    rotated = any(len(token) > 1 for token in tokens)
    places = [place + 0.5 for place in range(len(tokens))]
    axes.set_xticks(places, names, family="DejaVu Sans Mono", rotation=90 if rotated else 0)
    axes.tick_params(axis="x", labelsize=8, length=0)
