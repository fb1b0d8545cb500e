"""`python -m tests.largest_anchor`: a large anchor in several files, and a delta on it, published and followed.

Prints what it took. Needs three times the size in memory, and in the temporary directory four times.
"""

import argparse
import os
import resource
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_args

import torch
from transformers.utils.logging import disable_progress_bar

from shared.bits import bits
from shared.bucket import open_bucket
from shared.follower import Follower, Weights
from tests.faults.places import Kind, Place, place_of
from trainer_box.publisher import Publisher

_TENSOR = 100_000_000  # elements


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.largest_anchor", description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=6.0, help="of bf16 elements")
    parser.add_argument("--bucket", choices=get_args(Kind), default="folder")
    given = parser.parse_args()
    disable_progress_bar()
    with TemporaryDirectory(prefix="largest-") as folder, place_of(given.bucket, Path(folder)) as place:
        os.environ.update(place.environment("largest"))
        follow(place, make_weights(int(given.gigabytes * 1e9 / 2)))


def make_weights(elements: int) -> Weights:
    """N(0, 0.02) in bf16, in tensors of at most 100 million elements."""
    torch.manual_seed(0)
    sizes = [min(_TENSOR, elements - start) for start in range(0, elements, _TENSOR)]
    return {f"weight.{number}": (torch.randn(size) * 0.02).bfloat16() for number, size in enumerate(sizes)}


def follow(place: Place, weights: Weights) -> None:
    """Raises AssertionError when the follower's bits are not the publisher's."""
    bucket = open_bucket(place.name, os.environ.get("HF_TOKEN"))
    followed: Weights = {}
    follower = Follower(bucket, "largest")
    with Publisher(bucket, "largest") as publisher:
        for step in range(2):
            if step:
                for tensor in weights.values():
                    tensor[::100] *= 2
            started = time.monotonic()
            manifest = publisher.publish(weights.items())
            published = time.monotonic()
            follower.catch_up(followed)
            assert weights.keys() == followed.keys()
            assert all(torch.equal(bits(weights[name]), bits(followed[name])) for name in weights)
            nbytes = sum(file.nbytes for file in manifest.files)
            seconds = f"published in {published - started:.0f} s, followed in {time.monotonic() - published:.0f} s"
            print(f"{manifest.kind}: {nbytes / 1e9:.2f} GB in {len(manifest.files)} files, {seconds}", flush=True)
    print(f"most memory held: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.1f} GB")


if __name__ == "__main__":
    main()
