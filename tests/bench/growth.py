"""How the time of each phase grows with the model, from 10 M to 1 B elements, with what the same would cost densely.

Two series: one percent of the elements changes, or the same number in every model. Phases are those of a sync without
the bucket: detect (float32 weights against the bf16 ones held), encode (the file written), stage (the file checked,
decoded and verified), apply (in place, on a plain dict of tensors). The changes are of the lowest bit at places of
pure chance. Takes 9 GB.
"""

import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from shared import fingerprint
from shared.bits import bits
from shared.changes import Change, fingerprint_gain
from shared.files import Label, write_anchor, write_delta
from shared.snapshot import Snapshot
from shared.types import DataFile, Manifest, now
from tests.bench.clock import best, timed
from tests.bench.rows import NotRun, Result, Row, result
from trainer_box.detect import find_changes

SIDE = 2048
TENSORS = (2, 7, 24, 72, 238)
SAME_EVERYWHERE = 80_000
SERIES: dict[str, Callable[[int], int]] = {
    "1 % changed": lambda elements: elements // 100,
    f"{SAME_EVERYWHERE} elements changed": lambda elements: SAME_EVERYWHERE,
}
PEERS = {
    "detect": "cast and compare once",
    "encode": "a full anchor written",
    "stage": "all weights counted",
    "apply": "all weights copied",
}
LOWEST_BIT_OF_BF16 = 1 << 16

Weights = dict[str, torch.Tensor]
Seconds = dict[str, float]


def run(sizes: tuple[int, ...] = TENSORS, side: int = SIDE) -> Result:
    return result([*phases(sizes, side), *on_a_gpu()])


def phases(sizes: tuple[int, ...], side: int) -> Iterator[Row]:
    """One row per phase, series and size, then the exponents of elements in the times."""
    points: dict[tuple[str, str], list[tuple[int, float, float]]] = defaultdict(list)
    for tensors in sizes:
        elements = tensors * side * side
        for series, ours, dense in measure(tensors, side):
            for phase, peer in PEERS.items():
                points[series, phase].append((elements, ours[phase], dense[phase]))
                yield Row(f"{elements / 1e6:.3g} M, {series}", f"{phase} s", peer, ours[phase], dense[phase])
    for (series, phase), found in points.items():
        sizes_of, ours_of, dense_of = zip(*found, strict=True)
        exponents = (exponent(sizes_of, ours_of), exponent(sizes_of, dense_of))
        yield Row(f"all sizes, {series}", f"{phase}, fitted exponent", PEERS[phase], *exponents)


def on_a_gpu() -> Iterator[NotRun]:
    yield NotRun("on a GPU", ", ".join(PEERS), "these phases were measured on the CPU only")


def exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """The k of seconds ~ size ** k, by least squares of the logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def measure(tensors: int, side: int) -> Iterator[tuple[str, Seconds, Seconds]]:
    """Per series our seconds and the dense ones."""
    generator = torch.Generator().manual_seed(0)
    held = {f"weight.{n}": torch.randn(side, side, generator=generator).mul_(0.02).bfloat16() for n in range(tensors)}
    master = {name: tensor.float() for name, tensor in held.items()}
    with tempfile.TemporaryDirectory() as folder:
        counting_s, snapshot = timed(lambda: Snapshot(held, 0))
        dense = {
            "detect": best(lambda: cast_and_compare(master, held)),
            "encode": timed(lambda: write_anchor(Path(folder) / "anchor", Label("bench", 0, "0" * 16), held))[0],
            "stage": counting_s,
            "apply": best(partial(copy_all, held, {name: tensor.clone() for name, tensor in held.items()})),
        }
        for series, count_of in SERIES.items():
            places = choose(held, count_of(snapshot.total), generator)
            flip(master, places)
            yield series, sync(snapshot, master, Path(folder) / "delta"), dense
            flip(master, places)


def sync(snapshot: Snapshot, master: Weights, path: Path) -> Seconds:
    """Our seconds by phase. The snapshot is as before in the end."""
    total, base = snapshot.total, fingerprint.to_text(snapshot.fingerprint)
    detect_s, changes = timed(lambda: find_changes(master.items(), snapshot.tensors, torch.bfloat16))
    again_s, _ = timed(lambda: find_changes(master.items(), snapshot.tensors, torch.bfloat16))
    reached = fingerprint.to_text(snapshot.fingerprint + fingerprint_gain(changes))
    manifest = Manifest("bench", 1, "delta", (DataFile("delta", 1, "0" * 32),), reached, 1, total, 1, now(), 0, base)
    label = Label.of(manifest)
    encode_s = best(lambda: write_delta(path, label, changes, total, "packed"))
    stage_s = best(lambda: snapshot.stage(manifest, path))
    staged: list[Change] = snapshot.stage(manifest, path)
    apply_s, _ = timed(lambda: snapshot.commit(1, staged))
    undo_s, _ = timed(lambda: snapshot.undo(0, staged))
    return {
        "detect": min(detect_s, again_s),
        "encode": encode_s,
        "stage": stage_s,
        "apply": min(apply_s, undo_s),
    }


def choose(held: Weights, count: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """About `count` places, evenly over all tensors."""
    each = -(-count // len(held))
    return {
        name: torch.randint(tensor.numel(), (each,), generator=generator).unique() for name, tensor in held.items()
    }


def flip(master: Weights, places: Mapping[str, torch.Tensor]) -> None:
    for name, chosen in places.items():
        bits(master[name])[chosen] ^= LOWEST_BIT_OF_BF16


def cast_and_compare(master: Weights, held: Weights) -> None:
    for name, tensor in master.items():
        torch.ne(bits(tensor.bfloat16()), bits(held[name]))


def copy_all(held: Weights, live: Weights) -> None:
    for name, tensor in held.items():
        live[name].copy_(tensor)
