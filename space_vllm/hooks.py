"""Which parts of a vLLM model derive something from their weights after loading, which in-place writes would miss.

Everything under the parent of such a layer counts as derived: MLA, for one, takes copies of its siblings' weights.
"""

from typing import Any

import torch
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

# Read in vLLM 0.32: on CUDA these leave matrices as they are, on the CPU they choose a kernel, which `cpu_linear`
# keeps from packing them. `Attention` sets the scales of a quantised cache from what is no weight; of sinks, which are
# weights beside it, some of its backends keep a cast.
_HARMLESS = (UnquantizedLinearMethod, UnquantizedEmbeddingMethod)
_HOOK = "process_weights_after_loading"


def derived(model: torch.nn.Module) -> set[str]:
    """Names of the modules under which weights are only placed by a full reload; "" stands for the whole model."""
    found = set()
    for name, module in model.named_modules():
        method = vars(module).get("quant_method") or vars(module)["_modules"].get("quant_method")
        if _derives(module) or _derives(method) or (method is not None and _is_no_matrix(module)):
            found.add(name.removesuffix(".quant_method").rpartition(".")[0])
    return {name for name in found if not any(is_under(name, other) for other in found - {name})}


def is_under(name: str, prefix: str) -> bool:
    return not prefix or name == prefix or name.startswith(prefix + ".")


def _derives(part: Any) -> bool:
    hook = next((vars(kind)[_HOOK] for kind in type(part).__mro__ if _HOOK in vars(kind)), None)
    if hook in (None, vars(QuantizeMethodBase)[_HOOK]) or type(part) in _HARMLESS:
        return False
    return type(part) is not Attention or bool(part.has_sink)


def _is_no_matrix(module: torch.nn.Module) -> bool:
    """Kernels of convolutions are packed by the same method that leaves matrices alone."""
    return any(parameter.ndim > 2 for parameter in module.parameters(recurse=False))
