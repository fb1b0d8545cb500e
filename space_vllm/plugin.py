"""What vLLM loads when `VLLM_PLUGINS` names it: `register` in every process, `endpoint_plugin` in the API server.

Imports late what only one of these processes needs.
"""

from typing import TYPE_CHECKING

from space_vllm import prefix_cache

if TYPE_CHECKING:
    from space_vllm.endpoint import EndpointPlugin

NAME = "delta_sync"


def register() -> None:
    """May run several times in a process."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        from space_vllm.cpu_linear import keep_weights

        keep_weights()
    prefix_cache.install()


def endpoint_plugin() -> "EndpointPlugin":
    from space_vllm.endpoint import EndpointPlugin

    return EndpointPlugin(NAME)
