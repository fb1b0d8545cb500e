"""Whether a set of traces accounts for the live model: every element reached once, or vocabulary padding.

Looks at places, never at values of weights. Whatever is missing, doubled or cannot be held is refused in one sentence.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

from shared.errors import SyncError
from shared.types import TensorSpec
from space_vllm.casts import holds
from space_vllm.tracing import Region, Trace, storage_of

Traces = Mapping[str, Trace]


def check_dtypes(specs: Mapping[str, TensorSpec], traces: Traces) -> None:
    """Raises SyncError when a live parameter cannot hold the values that are published for it."""
    for name, trace in traces.items():
        for region in trace.regions:
            if not holds(region.memory.dtype, specs[name].dtype):
                raise SyncError(
                    f"tensor {name!r} is published as {specs[name].dtype}, but the live parameter is "
                    f"{region.memory.dtype} and cannot hold every such value; publish in the dtype that is served, or "
                    "serve with --dtype float32"
                )


def check_reached(model: torch.nn.Module, traces: Traces) -> None:
    """Raises SyncError unless each element of each parameter is reached by one tensor, or is padding.

    Elements of parameters that a loader computes rather than copies are taken on the loader's word.
    """
    if passed_over := [name for name, trace in traces.items() if not trace.regions and trace.complete]:
        raise SyncError(
            f"vLLM takes nothing from {len(passed_over)} of the tensors, such as {passed_over[0]!r}: is it tied here, "
            "or of another architecture? Publish each parameter once, under its checkpoint name"
        )
    computed = {name for trace in traces.values() if not trace.complete for name in trace.loaded}
    regions = _by_storage(traces)
    for name, parameter in distinct_parameters(model):
        sources = regions[storage_of(parameter)]
        reached = _times_reached(parameter, [region for part in sources.values() for region in part])
        padded = _padding_of(model, name, reached)
        padded += padded == 0
        if name not in computed and not bool((reached == 1).all()):
            raise SyncError(_explain(name, parameter, sources, reached))


def padding(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The parts of live parameters that vLLM adds to round up a vocabulary and fills with zeros."""
    for name, parameter in distinct_parameters(model):
        rows = _padding_of(model, name, parameter.detach())
        if rows.numel():
            yield name, rows


def is_whole(spec: TensorSpec, trace: Trace) -> bool:
    """Whether the regions reach each element of the wire tensor once, so that it can be read back from them."""
    if not trace.complete or sum(region.numel for region in trace.regions) != spec.numel:
        return False
    reached = torch.zeros(spec.numel, dtype=torch.uint8)
    for region in trace.regions:
        if 0 in region.wire_strides:  # one element goes to several places
            return False
        reached.as_strided(region.shape, region.wire_strides, region.wire_offset).add_(1)
    return bool((reached == 1).all())


def distinct_parameters(model: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    """One name for each place in memory: tied parameters come once."""
    places: dict[tuple[object, ...], tuple[str, torch.nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        place = (parameter.data_ptr(), parameter.shape, parameter.stride())
        places.setdefault(place if parameter.numel() else (name,), (name, parameter))
    return list(places.values())


def _times_reached(parameter: torch.nn.Parameter, regions: Sequence[Region]) -> torch.Tensor:
    """Per element, by all regions of the parameter's storage."""
    counts = torch.zeros(parameter.untyped_storage().nbytes() // parameter.element_size(), dtype=torch.uint8)
    for region in regions:
        counts.as_strided(region.shape, region.live_strides, region.live_offset).add_(1)
    return counts.as_strided(parameter.shape, parameter.stride(), parameter.storage_offset())


def _by_storage(traces: Traces) -> dict[int, dict[str, list[Region]]]:
    """The regions in each live storage, by the name of the tensor that they come from."""
    found: dict[int, dict[str, list[Region]]] = defaultdict(lambda: defaultdict(list))
    for name, trace in traces.items():
        for region in trace.regions:
            found[storage_of(region.memory)][name].append(region)
    return found


def _padding_of(model: torch.nn.Module, name: str, elements: torch.Tensor) -> torch.Tensor:
    """The rows of `elements`, one for each of the parameter, that no word of the vocabulary has."""
    module = model.get_submodule(name.rpartition(".")[0])
    return elements[module.org_vocab_size :] if isinstance(module, VocabParallelEmbedding) else elements.new_empty(0)


def _explain(name: str, parameter: torch.nn.Parameter, sources: Iterable[str], reached: torch.Tensor) -> str:
    missing, doubled = int((reached == 0).sum()), int((reached > 1).sum())
    what = f"{missing} elements of it come from no tensor" if missing else f"{doubled} come from more than one tensor"
    return (
        f"live parameter {name!r} {tuple(parameter.shape)} is not what is published: {what} "
        f"(it is made of {', '.join(sorted(sources)[:4]) or 'none of them'}); publish every parameter of the same "
        "architecture, once"
    )
