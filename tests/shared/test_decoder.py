"""A decoder that was written from FORMAT.md alone, by somebody who saw nothing else of the project, reads a run.

The same is done with the run that a live server follows, in tests/space_vllm/test_fresh_server.py.
"""

from pathlib import Path

import pytest
from safetensors.torch import save_file

from shared.bucket import open_bucket
from shared.files import Encoding
from tests.shared.decoder import digests, read_file, rebuild
from tests.shared.weights import model, nudge
from trainer_box.publisher import Publisher


@pytest.mark.parametrize("encoding", ["packed", "coo"])
def test_version_20_is_rebuilt_from_the_bucket_bit_by_bit(tmp_path: Path, encoding: Encoding) -> None:
    weights, checkpoint = model(), tmp_path / "checkpoint.safetensors"
    with Publisher(open_bucket(f"local:{tmp_path / 'bucket'}"), "run", encoding=encoding) as out:
        for seed in range(21):
            published = out.publish(weights.items())
            save_file(weights, checkpoint, metadata={"format": "pt"})
            nudge(weights, seed, count=seed)
    assert (published.version, published.kind) == (20, "delta")
    assert digests(rebuild(tmp_path / "bucket", "run", 20)) == digests(read_file(checkpoint)[1])
