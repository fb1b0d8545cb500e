"""The Space's log within vLLM's server."""

import logging

LOG = logging.getLogger("vllm.delta_sync")  # below "vllm", so that vLLM's handlers print it
