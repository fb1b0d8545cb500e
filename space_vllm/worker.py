"""What vLLM mixes into its worker (`--worker-extension-cls`): the receiver, reachable through `collective_rpc`.

Arguments and results are plain data. Only `delta_apply`, `delta_verify` and `delta_undo` take long; they are called in
a pause.
"""

from pathlib import Path
from typing import Any

from vllm.platforms import current_platform

from shared.errors import SyncError
from shared.types import Manifest
from space_vllm.cpu_linear import keeps_weights
from space_vllm.receiver import Receiver
from space_vllm.vllm_model import VllmModel


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
        self._delta_receiver = Receiver(VllmModel(self.model_runner.get_model(), self.vllm_config))
        self._delta_receiver.join()

    def delta_stage(self, manifest: str, files: list[str]) -> None:
        self._delta().stage(Manifest.from_json(manifest.encode(), "the update"), [Path(file) for file in files])

    def delta_stage_base(self) -> None:
        self._delta().stage_base()

    def delta_poll(self) -> dict[str, Any]:
        return self._delta().poll().to_wire()

    def delta_apply(self) -> dict[str, Any]:
        return self._delta().apply().to_wire()

    def delta_verify(self) -> dict[str, Any]:
        return self._delta().verify().to_wire()

    def delta_undo(self) -> dict[str, Any]:
        return self._delta().undo().to_wire()

    def delta_lose(self) -> None:
        self._delta().lose()

    def delta_discard(self) -> None:
        self._delta().discard()

    def delta_recount(self, anew: bool) -> dict[str, Any]:
        return self._delta().audit(anew).to_wire()

    def _delta(self) -> Receiver:
        if self._delta_receiver is None:
            raise SyncError("this worker has not joined yet")
        return self._delta_receiver
