"""x W' + b, computed by the faster of two libraries on a CPU. Axes: N rows, I inputs, O outputs.

torch multiplies in float32 with MKL, which leaves half of an AMD processor with AVX-512 unused;
oneDNN, which comes with torch too, does not.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

FEWEST_ROWS = 16
"""With fewer rows, a product takes as long as reading the matrix."""


def linear(x: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """Return x (..., I) times the transpose of the weight, plus the bias: (..., O)."""
    if not has_fast_products(x, weight_OI) or x.numel() < FEWEST_ROWS * x.size(-1):
        return F.linear(x, weight_OI, bias_O)
    return multiply(x, weight_OI, bias_O)


def is_cpu_inference(x: Tensor) -> bool:
    """Whether to compute in float32 on a CPU, without gradients and outside of any tracing."""
    return (
        x.device.type == "cpu"
        and x.dtype == torch.float32
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and type(x) is Tensor
        and not torch.compiler.is_compiling()
    )


def has_fast_products(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN can multiply these for inference, and is faster: with AVX-512."""
    return (
        is_cpu_inference(x)
        and weight.dtype == torch.float32
        # Not weights that are spread over processes.
        and type(weight) in (Tensor, torch.nn.Parameter)
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]  # torch has no types for it
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
    )


def multiply(x: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """Return what `linear` does, by oneDNN.

    The weight, or its transpose, must be contiguous: others take a thousand times as long.
    """
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight_OI, bias_O, "none", [], "")
    return out
