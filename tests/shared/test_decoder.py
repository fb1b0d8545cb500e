"""A decoder that was written from FORMAT.md alone, by somebody who saw nothing else of the project, reads a run."""

import hashlib
from pathlib import Path

import pytest
from safetensors import safe_open
from safetensors.torch import save_file

from shared.bits import bits
from shared.bucket import open_bucket
from shared.files import Encoding
from tests.shared.decoder import rebuild
from tests.shared.weights import model, nudge
from trainer_box.publisher import Publisher


def sums(checkpoint: Path) -> dict[str, str]:
    """The sha256 of each tensor's bytes in a safetensors file."""
    with safe_open(checkpoint, framework="pt") as file:
        return {
            name: hashlib.sha256(bits(file.get_tensor(name)).numpy().tobytes()).hexdigest() for name in file.keys()
        }


@pytest.mark.parametrize("encoding", ["packed", "coo"])
def test_version_20_is_rebuilt_from_the_bucket_bit_by_bit(tmp_path: Path, encoding: Encoding) -> None:
    weights = model()
    with Publisher(open_bucket(f"local:{tmp_path / 'bucket'}"), "run", encoding=encoding) as out:
        for seed in range(21):
            published = out.publish(weights.items())
            save_file(weights, tmp_path / "checkpoint.safetensors")
            nudge(weights, seed, count=seed)
    assert (published.version, published.kind) == (20, "delta")
    rebuilt = rebuild(tmp_path / "bucket", "run", 20)
    found = {name: hashlib.sha256(patterns.tobytes()).hexdigest() for name, patterns in rebuilt.items()}
    assert found == sums(tmp_path / "checkpoint.safetensors")
