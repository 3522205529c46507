"""Head by head over the keys its window touches: quick on a CPU, and anywhere for few queries."""

import torch
from torch import Tensor

from sparing.ops.window_attention import reference
from sparing.ops.window_attention.edge import Edge


def window_attention(
    query_BTHK: Tensor, fresh_BT2HK: Tensor, memory_BM2HK: Tensor, edge: Edge
) -> Tensor:
    """See the package's docstring."""
    memory, mixed = memory_BM2HK.size(1), []
    for head, reach in enumerate((edge.span_H.detach() + edge.ramp).tolist()):
        one, unseen = slice(head, head + 1), max(0, memory - int(reach))
        mixed.append(
            reference.window_attention(
                query_BTHK[:, :, one],
                fresh_BT2HK[:, :, :, one],
                memory_BM2HK[:, unseen:, :, one],
                Edge(edge.span_H[one], edge.first_B - unseen, edge.ramp),
            )
        )
    return torch.cat(mixed, dim=2)
