"""The form for a GPU: biases by distance from one product, and kernels that skip what is unseen.

Only for spans of heads, zero vectors before the first key, and no persistent vectors. Axes: B
batch, H heads, T segment, S keys, K head width, W distances seen.
"""

from torch import Tensor

from sparing.ops.distance_attention.fused import SoftEdge, distance_attention
from sparing.ops.span_attention.reference import Ramp


def span_attention(  # noqa: PLR0913  a public op
    query_BHTK: Tensor,
    keys_BHSK: Tensor,
    values_BHSK: Tensor,
    position_KW: Tensor,
    span_H: Tensor,
    *,
    ramp: Ramp,
    dropout: float = 0.0,
) -> Tensor:
    """See the package's docstring."""
    query_BTHK = (query_BHTK * query_BHTK.size(-1) ** -0.5).to(keys_BHSK.dtype).transpose(1, 2)
    bias_BTHW = query_BTHK @ position_KW.to(query_BTHK.dtype)
    mixed_BTHK = distance_attention(
        query_BTHK,
        keys_BHSK.transpose(1, 2),
        values_BHSK.transpose(1, 2),
        bias_BTHW.transpose(1, 2),
        nearest=1,
        edge=SoftEdge(span_H, ramp),
        dropout=dropout,
    )
    return mixed_BTHK.transpose(1, 2)
