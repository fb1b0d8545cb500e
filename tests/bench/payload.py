"""What a step's payload costs: bytes, against the entropy and against other encodings, and time to encode and decode.

Each encoding's result is decoded and compared with the step, so no number is of something that does not work. Bytes
are of the whole file, with table, labels and checksum. Encodings of what changed do not include finding it, so those
that need not know it are compared with detection and encoding together.
"""

import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch

from shared import packed
from shared.bits import bits
from shared.changes import Change
from shared.files import Label, write_delta
from tests.bench.clock import Made, timed
from tests.bench.entropy import entropy_bytes
from tests.bench.peers import DENSE, SPARSE, Dense, Sparse
from tests.bench.rows import Result, Row, result
from tests.bench.steps import (
    LAYER_OF_7B,
    QWEN3_06B,
    SERVED_20M,
    Shapes,
    Step,
    adamw_steps,
    elements,
    shapes_of,
    tiny_policy,
)
from trainer_box.detect import find_changes

LABEL = Label("bench", 1, "0" * 16, 0, "0" * 16)
CASES: tuple[tuple[str, Callable[[], Shapes], tuple[float, ...]], ...] = (
    ("tiny policy, 0.7 M", tiny_policy, (5e-5,)),
    ("20 M", partial(shapes_of, SERVED_20M), (1e-6, 1e-5, 1e-4)),
    ("layer of a 7 B", partial(shapes_of, LAYER_OF_7B), (3e-7, 3e-6)),
    ("Qwen3-0.6B", partial(shapes_of, QWEN3_06B), (3e-7, 1e-6, 3e-6)),
)
# A learning rate, and in how many tensors of 4096 x 4096 it changes over 100,000 elements: 0.05 % to 30 % of all.
DENSITIES = ((2.7e-8, 16), (6e-8, 8), (3e-7, 4), (1e-6, 2), (3e-6, 1), (1e-5, 1), (3e-5, 1), (6e-5, 1))

Seconds = defaultdict[str, float]


@dataclass
class Costs:
    """Of one model's step in all encodings; `ours` is the name of the packed one."""

    changes: list[Change] = field(default_factory=list)
    nbytes: Counter[str] = field(default_factory=Counter)
    encode_s: Seconds = field(default_factory=lambda: defaultdict(float))
    decode_s: Seconds = field(default_factory=lambda: defaultdict(float))
    detect_s: float = 0.0

    @property
    def changed(self) -> int:
        return sum(change.count for change in self.changes)

    def add(self, step: Step) -> None:
        """A tensor; only what changed in it is kept."""
        taken, changes = timed(lambda: find_changes([(step.name, step.new)], {step.name: step.old}, None))
        self.detect_s += taken
        self.changes += changes
        old, new = bits(step.old).numpy(), bits(step.new).numpy()
        for dense in DENSE:
            self._try_dense(dense, old, new)
        for change in changes:
            for sparse in SPARSE:
                self._try_sparse(sparse, change.indices.numpy(), change.new.numpy())

    def finish(self, total: int) -> None:
        """Encodes what was added, and checks that it decodes to that."""
        streams = self._encoded("ours", lambda: packed.encode(self.changes))
        table = [(change.spec, change.count) for change in self.changes]
        patches = self._decoded("ours", lambda: packed.decode(table, streams))
        for change, patch in zip(self.changes, patches, strict=True):
            made = patch.onto(change.old)
            assert torch.equal(made.indices, change.indices) and torch.equal(made.new, change.new)
        with tempfile.TemporaryDirectory() as folder:
            write_delta(Path(folder) / "delta", LABEL, self.changes, total, "packed")
            self.nbytes["ours"] = (Path(folder) / "delta").stat().st_size

    def _try_sparse(self, peer: Sparse, indices: np.ndarray, new: np.ndarray) -> None:
        raw = self._encoded(peer.name, lambda: peer.encode(indices, new))
        self.nbytes[peer.name] += len(raw)
        places, values = self._decoded(peer.name, lambda: peer.decode(raw, indices.size))
        assert np.array_equal(places, indices) and np.array_equal(values, new)

    def _try_dense(self, peer: Dense, old: np.ndarray, new: np.ndarray) -> None:
        raw = self._encoded(peer.name, lambda: peer.encode(old, new))
        self.nbytes[peer.name] += len(raw)
        assert np.array_equal(self._decoded(peer.name, lambda: peer.decode(raw, old)), new)

    def _encoded(self, name: str, work: Callable[[], Made]) -> Made:
        return _timed(self.encode_s, name, work)

    def _decoded(self, name: str, work: Callable[[], Made]) -> Made:
        return _timed(self.decode_s, name, work)


def _timed(seconds: Seconds, name: str, work: Callable[[], Made]) -> Made:
    taken, made = timed(work)
    seconds[name] += taken
    return made


def measure(shapes: Shapes, learning_rates: Sequence[float]) -> dict[float, Costs]:
    costs = {rate: Costs() for rate in learning_rates}
    for rate, step in adamw_steps(shapes, learning_rates):
        costs[rate].add(step)
    for found in costs.values():
        found.finish(elements(shapes))
    return costs


def rows_of(case: str, costs: Costs) -> Iterator[Row]:
    """Bytes and times of a step."""
    changed, ours = costs.changed, costs.nbytes["ours"]
    yield against_entropy(case, costs)
    for peer in (*SPARSE, *DENSE):
        yield Row(case, "bytes per change", peer.name, ours / changed, costs.nbytes[peer.name] / changed)
    yield Row(case, "MB per step", "full anchor", ours / 1e6, costs.nbytes["full anchor"] / 1e6)
    for peer in (*SPARSE, *DENSE[:1]):
        finding_s = costs.detect_s if isinstance(peer, Dense) else 0.0
        yield speed(case, f"{'detect and ' if finding_s else ''}encode", peer.name, changed, costs.encode_s, finding_s)
        yield speed(case, "decode", peer.name, changed, costs.decode_s)


def speed(case: str, what: str, peer: str, changed: int, seconds: Seconds, finding_s: float = 0.0) -> Row:
    ours, theirs = changed / (seconds["ours"] + finding_s), changed / seconds[peer]
    return Row(case, f"{what}, M changes per s", peer, ours / 1e6, theirs / 1e6)


def against_entropy(case: str, costs: Costs) -> Row:
    entropy = entropy_bytes(costs.changes) / costs.changed
    return Row(case, "bytes per change", "entropy", costs.nbytes["ours"] / costs.changed, entropy)


def run() -> Result:
    return result([*densities(), *models()])


def densities() -> Iterator[Row]:
    for rate, tensors in DENSITIES:
        shapes = {f"weight.{number}": (1 << 12, 1 << 12) for number in range(tensors)}
        (costs,) = measure(shapes, [rate]).values()
        yield against_entropy(f"{tensors} x 4096 x 4096, {costs.changed / elements(shapes):.2%}", costs)


def models() -> Iterator[Row]:
    for name, model, rates in CASES:
        shapes = model()
        for rate, costs in measure(shapes, rates).items():
            yield from rows_of(f"{name}, lr {rate:.0e}, {costs.changed / elements(shapes):.2%}", costs)
