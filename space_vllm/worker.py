"""What vLLM mixes into its worker (`--worker-extension-cls`): the receiver, reachable through `collective_rpc`.

Arguments and results are plain data. Every method returns at once except `delta_apply`, which is called in a pause.
"""

from pathlib import Path
from typing import Any

import torch
from vllm.model_executor.model_loader import get_model_loader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.platforms import current_platform

from shared.errors import SyncError
from shared.types import Manifest
from space_vllm.cpu_linear import keeps_weights
from space_vllm.loaders import LoaderPlacement
from space_vllm.receiver import Receiver


class WorkerExtension:
    """Every name starts with `delta_`: vLLM refuses an extension that shares a name with its worker."""

    vllm_config: Any
    model_runner: Any
    _delta_receiver: Receiver | None = None

    def delta_join(self) -> None:
        """Raises SyncError when the plugin was not loaded before the model."""
        if current_platform.is_cpu() and not keeps_weights():
            raise SyncError(
                "linear weights were packed at load and cannot follow updates; set VLLM_PLUGINS=delta_sync"
            )
        receiver = self._delta_receiver = Receiver(LoaderPlacement(self.model_runner.get_model()))
        receiver.join(lambda: _base_weights(self.vllm_config, self.model_runner.get_model()))

    def delta_stage(self, manifest: str, files: list[str]) -> None:
        self._delta().stage(Manifest.from_json(manifest.encode(), "the update"), [Path(file) for file in files])

    def delta_poll(self) -> dict[str, Any]:
        return self._delta().poll().to_wire()

    def delta_apply(self) -> dict[str, Any]:
        return self._delta().apply().to_wire()

    def delta_discard(self) -> None:
        self._delta().discard()

    def _delta(self) -> Receiver:
        if self._delta_receiver is None:
            raise SyncError("this worker has not joined yet")
        return self._delta_receiver


def _base_weights(vllm_config: Any, model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The checkpoint's tensors as vLLM read them: names and dtypes of its files."""
    loader = get_model_loader(vllm_config.load_config)
    if not isinstance(loader, DefaultModelLoader):
        raise SyncError(f"{type(loader).__name__} reads no checkpoint to recount; serve the model from safetensors")
    return dict(loader.get_all_weights(vllm_config.model_config, model))
