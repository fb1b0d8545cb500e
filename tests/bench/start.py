"""What it takes to start a run, to join it after 50 steps, and to keep it: bytes, against anchors every 10 steps.

Ours starts by reference to a model that both sides have, and writes an anchor only when the deltas since the last one
have grown to more than the model. The peer is the public blog's scheme: an anchor first and every 10 steps, int32
indices and bf16 values between them, nothing deleted. Its bytes are those that the same publisher writes when it is
told so. What joins is a `Follower` without weights, which recounts what it gets.

The last rows ask what Xet's deduplication saves between two anchors that are a step apart: the real client uploads
both to the stand-in Hub, which counts the bytes that it stores.
"""

import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import torch
from transformers.utils.logging import disable_progress_bar

from shared import fingerprint
from shared.bucket import open_bucket
from shared.files import Encoding
from shared.follower import Follower, Weights
from shared.types import Base
from tests.bench import models
from tests.bench.counted import Counted
from tests.bench.rows import Result, Row, result
from tests.bench.steps import SERVED_20M, Qwen3, shapes_of
from tests.bench.trainee import Trainee
from tests.faults.places import place_of
from trainer_box.publisher import Publisher

RUN, LEARNING_RATE = "bench", 1e-6
EVERY = 10
BLOG = f"anchors every {EVERY}"


@dataclass(frozen=True)
class Plan:
    size: Qwen3 = SERVED_20M
    steps: int = 50


@dataclass(frozen=True)
class Bytes:
    """`started` is what the first version took, `joined` what a new replica fetches, `written` the data in all."""

    started: int
    joined: int
    written: int
    stored: int


@dataclass(frozen=True)
class Scheme:
    """`every` so many steps there is an anchor; None leaves anchors, and what is deleted, to the publisher."""

    encoding: Encoding
    by_reference: bool
    every: int | None


OURS, THEIRS = Scheme("packed", True, None), Scheme("coo", False, EVERY)


def run(plan: Plan | None = None) -> Result:
    plan = plan or Plan()
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:  # the Hub's client reads its environment
        uploads = process.submit(upload_two_anchors, plan.size).result()
    ours, theirs = (play(plan, scheme) for scheme in (OURS, THEIRS))
    return result([*rows(plan, ours, theirs), *row_of_xet(*uploads)])


def rows(plan: Plan, ours: Bytes, theirs: Bytes) -> Iterator[Row]:
    case = f"{plan.steps} steps"
    yield Row(case, "MB to start", BLOG, ours.started / 1e6, theirs.started / 1e6)
    yield Row(case, "MB to join at the end", BLOG, ours.joined / 1e6, theirs.joined / 1e6)
    yield Row(case, "MB written", BLOG, ours.written / 1e6, theirs.written / 1e6)
    yield Row(case, "MB stored at the end", BLOG, ours.stored / 1e6, theirs.stored / 1e6)


def row_of_xet(size: int, first: int, second: int) -> Iterator[Row]:
    yield Row("stand-in Hub", "MB uploaded of an anchor", "its size", first / 1e6, size / 1e6)
    yield Row("stand-in Hub", "MB uploaded of the anchor a step later", "the one before", second / 1e6, first / 1e6)


def play(plan: Plan, scheme: Scheme) -> Bytes:
    """A run, and a replica that joins at its end. Raises AssertionError when that does not get the trainer's weights.

    What each side's version 0 is made of is the model's files, which the replica has.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models.save(plan.size, folder / "model")
        bucket = Counted(open_bucket(f"local:{folder / 'bucket'}"))
        trainee = Trainee(shapes_of(plan.size), LEARNING_RATE)
        base = _base(folder / "model", trainee) if scheme.by_reference else Base()
        options = {"encoding": scheme.encoding, "base": base, "serving_dtype": torch.bfloat16}
        with Publisher(bucket, RUN, **options) as publisher:  # type: ignore[arg-type]
            first = publisher.publish(trainee.named())
            written = first.nbytes
            for step in range(1, plan.steps + 1):
                trainee.step()
                if scheme.every and step % scheme.every == 0:
                    publisher.rebase()
                written += publisher.publish(trainee.named()).nbytes
            joined = _join(bucket, publisher.count(trainee.named()))
        stored = _size_of(folder / "bucket")
        return Bytes(first.nbytes, joined, written, stored if scheme.every is None else written)


def _base(model: Path, trainee: Trainee) -> Base:
    served = {name: tensor.bfloat16() for name, tensor in trainee.named()}
    return Base(repo=str(model), fingerprint=fingerprint.to_text(fingerprint.fingerprint(served)))


def _join(bucket: Counted, wanted: str) -> int:
    """Bytes that are fetched."""
    weights: Weights = {}
    count = bucket.start()
    Follower(bucket, RUN).catch_up(weights)
    found = fingerprint.to_text(fingerprint.fingerprint(weights))
    assert found == wanted, f"who joined holds {found}, the trainer {wanted}"
    return count.down


def upload_two_anchors(size: Qwen3) -> tuple[int, int, int]:
    """The size of an anchor, and the bytes that the Hub's storage got for it and for the next, a step later."""
    disable_progress_bar()
    with tempfile.TemporaryDirectory() as name, place_of("stand-in Hub", Path(name)) as place:
        os.environ.update(place.environment("bench"))
        bucket = open_bucket(place.name, os.environ["HF_TOKEN"])
        trainee = Trainee(shapes_of(size), LEARNING_RATE)
        stored = [0]
        with Publisher(bucket, RUN, serving_dtype=torch.bfloat16) as publisher:
            for _ in range(2):
                publisher.rebase()
                manifest = publisher.publish(trainee.named())
                assert manifest.kind == "anchor", f"version {manifest.version} is a {manifest.kind}"
                stored.append(_size_of(Path(name) / "hub" / "xorbs"))
                trainee.step()
    return manifest.nbytes, stored[1], stored[2] - stored[1]


def _size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
