"""vLLM's model as a receiver sees it: what is traced is written in place, all else goes through vLLM's own loader.

The only module that loads weights. Knows no versions and keeps no wire weights, except of tensors that cannot be read
back from the live model.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.model_loader import get_model_loader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from shared import fingerprint
from shared.bits import DTYPES, bits, spec_of
from shared.changes import Change
from shared.errors import IntegrityError, SyncError
from shared.types import TensorSpec
from space_vllm.casts import holds
from space_vllm.coverage import check_dtypes, check_reached, distinct_parameters, is_whole, padding
from space_vllm.hooks import derived, is_under
from space_vllm.in_parallel import in_parallel
from space_vllm.live import LiveTensor
from space_vllm.placement import Weights
from space_vllm.tracing import Trace, Witness, storage_of, trace


class VllmModel:
    """`is_trusted` turns false when writing in place has once gone wrong unseen.

    `rehearsed` are the tensors whose reload led to what vLLM's first load made of them, each with the number of its
    elements that were seen to be copied; None before that was tried.
    """

    def __init__(self, model: torch.nn.Module, config: VllmConfig) -> None:
        self._model = model
        self._config = config
        self._derived = derived(model)
        self.is_trusted = True
        self.rehearsed: dict[str, int] | None = None

    def base(self) -> Weights:
        loader = get_model_loader(self._config.load_config)
        if not isinstance(loader, DefaultModelLoader):
            raise SyncError(
                f"{type(loader).__name__} reads no checkpoint to recount; serve the model from safetensors"
            )
        tensors = dict(loader.get_all_weights(self._config.model_config, self._model))
        traces = {name: self._trace_alone(name, tensor) for name, tensor in tensors.items()}
        return {
            name: _as_served(tensors[name], found)
            for name, found in traces.items()
            if found.regions or not found.complete
        }

    def find(self, tensors: Mapping[str, torch.Tensor]) -> "VllmPlaces":
        traces = {name: self._trace(name, tensor) for name, tensor in tensors.items()}
        specs = {name: spec_of(name, tensor) for name, tensor in tensors.items()}
        check_dtypes(specs, traces)
        check_reached(self._model, traces)
        owners = self._owners()
        parameters = {
            name: found.loaded.union(*(owners.get(storage_of(region.memory), ()) for region in found.regions))
            for name, found in traces.items()
        }
        traced = {
            name: LiveTensor(specs[name], tuple(found.regions))
            for name, found in traces.items()
            if is_whole(specs[name], found) and not self.groups(parameters[name])
        }
        kept = {name: parameters[name] for name in traces.keys() - traced.keys()}
        if self.rehearsed is not None and (unknown := sorted(kept.keys() - self.rehearsed.keys())):
            raise SyncError(
                f"{len(unknown)} tensors, such as {unknown[0]!r}, can only be reloaded by vLLM, and the base model "
                "has none of that name to try it on; publish under the names of the base model's checkpoint"
            )
        return VllmPlaces(self, traced, kept)

    def backup(self) -> Weights:
        return {name: parameter.detach().to("cpu", copy=True) for name, parameter in distinct_parameters(self._model)}

    def restore(self, backup: Weights) -> None:
        for name, parameter in distinct_parameters(self._model):
            parameter.detach().copy_(backup[name])

    def distrust(self) -> None:
        self.is_trusted = False

    def load(self, tensors: Mapping[str, torch.Tensor], reloaded: Mapping[str, set[str]]) -> dict[str, int]:
        """Through vLLM's loader. How many elements it copied of each tensor in `reloaded`, with its live parameters.

        Raises SyncError when they were fewer than in the rehearsal, and whatever the loader raises.
        """
        groups = sorted({group for name in tensors.keys() & reloaded for group in self.groups(reloaded[name])})
        modules = [self._model.get_submodule(group) for group in groups]
        witness = Witness({name: tensors[name] for name in tensors.keys() & reloaded})
        load: Any = self._model.load_weights
        with torch.no_grad(), set_current_vllm_config(self._config), witness:
            for module in modules:
                initialize_layerwise_reload(module)
            try:
                load(tensors.items())
            finally:
                for module in modules:
                    finalize_layerwise_reload(module, self._config.model_config)
        for name, copied in sorted(witness.copied.items()):
            if copied < (wanted := (self.rehearsed or {}).get(name, 0)):
                raise SyncError(f"vLLM's loader took {copied} elements of {name!r}, in the rehearsal it took {wanted}")
        return witness.copied

    def digest(self, parameters: Iterable[str]) -> int:
        """Of the live bits, in whatever form vLLM keeps them."""
        return fingerprint.fingerprint({name: self._model.get_parameter(name).detach() for name in parameters})

    def check(self) -> None:
        for name, rows in padding(self._model):
            if bool(bits(rows).any()):
                raise IntegrityError(f"the padding of live parameter {name!r} holds values that are not 0")

    def _trace_alone(self, name: str, tensor: torch.Tensor) -> Trace:
        """Of the base model's. What vLLM refuses here it has skipped among the others: a tied tensor's other name."""
        try:
            return self._trace(name, tensor)
        except SyncError:
            return Trace()

    def _trace(self, name: str, tensor: torch.Tensor) -> Trace:
        load: Any = self._model.load_weights
        try:
            return trace(load, name, tensor)
        except Exception as error:  # a loader raises anything
            raise SyncError(
                f"vLLM's loader refuses tensor {name!r} {tuple(tensor.shape)}: {error!r}; publish the parameters of "
                "the architecture that is served"
            ) from error

    def _owners(self) -> dict[int, set[str]]:
        """The live parameters by the memory that they are in."""
        owners: dict[int, set[str]] = {}
        for name, parameter in self._model.named_parameters():
            owners.setdefault(storage_of(parameter), set()).add(name)
        return owners

    def groups(self, parameters: Iterable[str]) -> set[str]:
        """The modules that are only reloaded as a whole and hold one of these."""
        return {group for group in self._derived for name in parameters if is_under(name, group)}


class VllmPlaces:
    """`kept` tensors, with their live parameters, cannot be read back: their wire weights are held here."""

    def __init__(self, model: VllmModel, traced: Mapping[str, LiveTensor], kept: Mapping[str, set[str]]) -> None:
        self._model = model
        self._traced = traced
        self._reloaded = kept
        self._kept: Weights = {}
        self._digests: dict[str, int] = {}
        self._before: dict[str, int] = {}

    def adopt(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._kept = {name: tensors[name].clone() for name in self._reloaded}
        self._note_digests()

    def rehearse(self) -> None:
        copied = self._model.load(self._kept, self._reloaded)
        for name, parameters in self._witnessed().items():
            if self._model.digest(parameters) != self._digests[name]:
                raise SyncError(
                    f"vLLM does not make the same of {name!r} and others when it reloads them as when it loads them "
                    f"first (live parameters {', '.join(parameters)}): this architecture cannot follow updates here"
                )
        self._model.rehearsed = copied

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._model.load(tensors, self._reloaded)
        self.adopt(tensors)

    def write(self, changes: Sequence[Change]) -> None:
        self._before = self._digests
        in_place = self._traced if self._model.is_trusted else {}
        in_parallel(
            lambda change: in_place[change.spec.name].write(change),
            [change for change in changes if change.spec.name in in_place],
        )
        if through_loader := [change for change in changes if change.spec.name not in in_place]:
            self._write_through_loader(through_loader)

    def undo(self, changes: Sequence[Change]) -> None:
        wanted = self._before
        self.write([change.reversed() for change in changes])
        self._digests = wanted  # what vLLM makes of the old weights has to be what it was

    def admit(self, spec: TensorSpec, patterns: torch.Tensor) -> None:
        if (traced := self._traced.get(spec.name)) is not None:
            traced.admit(patterns)

    def read(self, spec: TensorSpec, indices: torch.Tensor) -> torch.Tensor:
        traced = self._traced.get(spec.name)
        return traced.read(indices) if traced is not None else bits(self._kept[spec.name])[indices]

    def count(self, spec: TensorSpec, stopped: Callable[[], bool]) -> int | None:
        if spec.name in self._traced:
            return self._traced[spec.name].count(stopped)
        if spec.name in self._digests:
            self._check_digest(spec.name)
        return fingerprint.tensor(spec, bits(self._kept[spec.name]))

    def check(self) -> None:
        self._model.check()

    def summary(self) -> dict[str, int]:
        in_place = len(self._traced) if self._model.is_trusted else 0
        return {"in_place": in_place, "reloaded": len(self._traced) + len(self._reloaded) - in_place}

    def _write_through_loader(self, changes: Sequence[Change]) -> None:
        tensors = {change.spec.name: self._changed(change) for change in changes}
        groups = self._model.groups(name for tensor in tensors for name in self._reloaded.get(tensor, ()))
        for name, parameters in self._reloaded.items():  # a group is only reloaded as a whole
            if groups & self._model.groups(parameters):
                tensors.setdefault(name, self._kept[name])
        self._model.load(tensors, self._reloaded)
        self._note_digests()

    def _note_digests(self) -> None:
        self._digests = {name: self._model.digest(parameters) for name, parameters in self._witnessed().items()}

    def _changed(self, change: Change) -> torch.Tensor:
        """The whole wire tensor with the change in it; a kept one is changed for good."""
        spec, traced = change.spec, self._traced.get(change.spec.name)
        patterns = traced.whole() if traced is not None else bits(self._kept[spec.name])
        patterns[change.indices.to(patterns.device)] = change.new.to(patterns.device)
        return patterns.view(DTYPES[spec.dtype]).view(spec.shape) if traced is not None else self._kept[spec.name]

    def _witnessed(self) -> dict[str, list[str]]:
        """Each live parameter of kept tensors, with the first tensor that goes into it."""
        witnesses: dict[str, str] = {}
        for tensor, parameters in sorted(self._reloaded.items()):
            for parameter in sorted(parameters):
                witnesses.setdefault(parameter, tensor)
        return {
            tensor: [name for name, witness in witnesses.items() if witness == tensor]
            for tensor in dict.fromkeys(witnesses.values())
        }

    def _check_digest(self, tensor: str) -> None:
        parameters = self._witnessed()[tensor]
        if self._model.digest(parameters) != self._digests[tensor]:
            raise IntegrityError(
                f"live parameters {', '.join(parameters)} are not what vLLM made of {tensor!r} at first"
            )


def _as_served(tensor: torch.Tensor, found: Trace) -> torch.Tensor:
    dtypes = {region.memory.dtype for region in found.regions}
    narrower = [dtype for dtype in dtypes if not holds(dtype, spec_of("", tensor).dtype)]
    return tensor.to(narrower[0]) if narrower else tensor
