"""Linear layers that keep their weights on the CPU.

vLLM packs such weights for oneDNN or AMX when it loads a model and computes with the copy from then on, so that new
weights would have no effect. Here every layer computes with the weights it has.
"""

import torch
from vllm.model_executor.layers import utils

_pack = utils.dispatch_cpu_unquantized_gemm


def keep_weights() -> None:
    """For all layers whose weights are loaded later in this process."""
    utils.dispatch_cpu_unquantized_gemm = _dispatch


def keeps_weights() -> bool:
    return utils.dispatch_cpu_unquantized_gemm is _dispatch


def _dispatch(layer: torch.nn.Module, remove_weight: bool) -> None:
    weight: torch.Tensor = layer.get_parameter("weight")
    if weight.ndim == 2:
        layer.__dict__["cpu_linear"] = torch.nn.functional.linear
    else:  # not a linear layer: the kernels of convolutions and experts have no plain form
        _pack(layer, remove_weight)
