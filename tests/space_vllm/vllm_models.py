"""Tiny checkpoints of several architectures, and vLLM's models of them in the test's own process, without an engine.

vLLM is imported by what is called, not by who imports this: tests that need none of it stay fast.
"""

import functools
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Glm4MoeConfig, Glm4MoeForCausalLM, Lfm2Config, Lfm2ForCausalLM, PreTrainedModel

from shared.bits import bits
from shared.bucket import open_bucket
from shared.types import Manifest
from space_vllm.outcomes import Audited, Progress, Verified
from space_vllm.receiver import Receiver
from tests.space_vllm.driving import audited, settled, staged, sync
from tests.space_vllm.tiny import make_model
from trainer_box.publisher import Publisher

Weights = dict[str, torch.Tensor]

VOCABULARY = 300  # vLLM rounds it up to 320
_COMMON = dict(
    vocab_size=VOCABULARY,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
    bos_token_id=0,
    eos_token_id=1,
)


def qwen3(tied: bool) -> PreTrainedModel:
    return make_model(tied)


def glm4_moe() -> PreTrainedModel:
    """Its second layer has four experts and a router that vLLM keeps in float32."""
    torch.manual_seed(0)
    config = Glm4MoeConfig(
        **_COMMON,
        head_dim=32,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_shared_experts=1,
        moe_intermediate_size=32,
        first_k_dense_replace=1,
        n_group=1,
        topk_group=1,
        use_qk_norm=True,
        tie_word_embeddings=False,
    )
    return Glm4MoeForCausalLM(config).to(torch.bfloat16)


def lfm2() -> PreTrainedModel:
    """Its first layer is a short convolution, whose kernel of width 3 no CPU packs."""
    torch.manual_seed(0)
    names = dict(conv_dim=64, block_dim=64, block_ffn_dim_multiplier=1.0, block_multiple_of=64)  # which vLLM asks for
    config = Lfm2Config(
        **_COMMON,
        **names,
        layer_types=["conv", "full_attention"],
        conv_L_cache=3,
        block_auto_adjust_ff_dim=False,
        tie_word_embeddings=True,
    )
    return Lfm2ForCausalLM(config).to(torch.bfloat16)


@dataclass(frozen=True)
class Loaded:
    """vLLM's model of the checkpoint in `folder`."""

    folder: Path
    dtype: str
    model: torch.nn.Module
    config: Any

    def checkpoint(self) -> Weights:
        return load_file(self.folder / "model.safetensors")

    def live(self) -> Weights:
        """Copies of all live parameters, padding included."""
        return {name: parameter.detach().clone() for name, parameter in self.model.named_parameters()}

    def digests(self) -> dict[str, str]:
        """What vLLM reports as its checksums."""
        from vllm.model_executor.model_loader.weight_checksum import compute_tensor_digests

        found: dict[str, str] = compute_tensor_digests(self.model)
        return found

    def digests_of(self, weights: Weights, folder: Path) -> dict[str, str]:
        """vLLM's checksums of a model freshly loaded from a checkpoint of these weights."""
        shutil.copytree(self.folder, folder)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return load(folder, self.dtype).digests()


class Rig:
    """A receiver that has joined with vLLM's model, and a publisher of what the checkpoint holds, as version 0."""

    def __init__(self, loaded: Loaded, bucket: Path) -> None:
        from space_vllm.vllm_model import VllmModel

        self.loaded = loaded
        self.bucket = bucket
        self.weights = loaded.checkpoint()
        self.model = VllmModel(loaded.model, loaded.config)
        self.receiver = Receiver(self.model)
        self.receiver.join()
        self.joined = settled(self.receiver)
        self.out = self.publisher("run")
        self.served = self.publish()

    def replace_all(self, seed: int) -> None:
        """The next version is an anchor in which every element is another: that of a publisher that goes on."""
        scramble(self.weights, seed)
        self.out.close()
        self.out = self.publisher("run")

    def publisher(self, run_id: str) -> Publisher:
        return Publisher(open_bucket(f"local:{self.bucket}"), run_id)

    def publish(self) -> Manifest:
        return self.out.publish(self.weights.items())

    def stage(self, manifest: Manifest) -> Progress:
        return staged(self.receiver, manifest, self.bucket)

    def follow(self) -> Manifest:
        """Publish and sync. Fails unless the new version is verified."""
        manifest = self.publish()
        assert sync(self.receiver, manifest, self.bucket) == Verified(manifest.fingerprint)
        self.served = manifest
        return manifest

    def publish_anchor(self, weights: Weights) -> Manifest:
        """Of another run: what the rig's own publisher holds stays."""
        with self.publisher("other") as out:
            return out.publish(weights.items())

    def is_where_a_fresh_model_is(self, folder: Path) -> bool:
        """By vLLM's own checksums, and a recount finds nothing wrong."""
        fresh = self.loaded.digests_of(self.weights, folder)
        return audited(self.receiver) == Audited("done") and self.loaded.digests() == fresh


def save(model: PreTrainedModel, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder


def load(folder: Path, dtype: str) -> Loaded:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_PLUGINS", "")  # what is installed here is not to change this process
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setattr(torch.accelerator, "empty_cache", lambda: None)  # as vLLM's runner does on a CPU
        from vllm.config import set_current_vllm_config
        from vllm.engine.arg_utils import EngineArgs
        from vllm.model_executor.model_loader import get_model

        _start()
        arguments = EngineArgs(
            model=str(folder), dtype=dtype, enforce_eager=True, max_model_len=256, skip_tokenizer_init=True
        )
        config = arguments.create_engine_config()
        with set_current_vllm_config(config):
            _make_groups()
            return Loaded(folder, dtype, get_model(vllm_config=config), config)


def nudge(weights: Weights, seed: int, share: float = 0.02, names: list[str] | None = None) -> None:
    """Add one to the bits of some elements of each tensor (or of those named), at least of one, in place."""
    generator = torch.Generator().manual_seed(seed)
    for name in names if names is not None else list(weights):
        count = max(1, int(share * weights[name].numel()))
        bits(weights[name])[torch.randperm(weights[name].numel(), generator=generator)[:count]] += 1


def scramble(weights: Weights, seed: int) -> None:
    """Replace all elements, of bfloat16, by random finite bits, in place."""
    generator = torch.Generator().manual_seed(seed)
    for tensor in weights.values():
        random = torch.randint(-(1 << 15), 1 << 15, (tensor.numel(),), generator=generator).to(torch.int16)
        bits(tensor).copy_(torch.where(random & 0x7F00 == 0x7F00, random ^ 0x4000, random))


def same(one: Weights, other: Weights) -> bool:
    return one.keys() == other.keys() and all(torch.equal(bits(one[name]), bits(other[name])) for name in one)


def _make_groups() -> None:
    """Of one process. Which groups there are depends on the model: experts have one of their own."""
    from vllm.distributed import destroy_model_parallel, initialize_model_parallel

    destroy_model_parallel()
    initialize_model_parallel(1, 1)


@functools.cache
def _start() -> None:
    """What a worker does before it loads its model; lasts until the process ends."""
    from vllm.distributed import init_distributed_environment

    from space_vllm.plugin import register

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    init_distributed_environment(1, 0, f"tcp://127.0.0.1:{port}", 0, "gloo")
    register()
