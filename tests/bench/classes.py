"""What gaps within exponent classes would save, and what they would cost: an encoding that is measured and not used.

Small weights change far more often than large ones, and both sides hold the base. So list the elements of a tensor by
the exponent they have in the base, those of one exponent in their order, and take gaps in this order: each class then
has a density and a shift of its own. The price is that sender and receiver sort all elements, not those that change.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from shared import packed
from shared.bits import bits
from shared.changes import Change, Patch
from shared.types import TensorSpec
from tests.bench.clock import timed
from tests.bench.entropy import entropy_bytes
from tests.bench.rows import Result, Row, result
from tests.bench.steps import Shapes, Step, adamw_steps
from trainer_box.detect import find_changes

PEER = "gaps within exponent classes"
SHAPES: Shapes = {"weight": (1 << 12, 1 << 12)}
RATES = (3e-7, 1e-6, 3e-6, 1e-5)


def run(shapes: Shapes = SHAPES, rates: Sequence[float] = RATES) -> Result:
    return result(row for rate, step in adamw_steps(shapes, rates) for row in measure(rate, step))


def measure(rate: float, step: Step) -> Iterator[Row]:
    (plain,) = find_changes([(step.name, step.new)], {step.name: step.old}, None)
    case = f"lr {rate:.0e}, {plain.count / plain.spec.numel:.2%}"
    plain_s, streams = timed(lambda: packed.encode([plain]))
    plain_decode_s, _ = timed(lambda: packed.decode([(plain.spec, plain.count)], streams))
    classes_s, (classes, split) = timed(lambda: encode(step.old, plain))
    table = [(change.spec, change.count) for change in classes]
    decode_s, places = timed(lambda: decode(step.old, packed.decode(table, split)))
    assert torch.equal(places, plain.indices)

    yield Row(
        case, "entropy, bytes per change", PEER, *(entropy_bytes(one) / plain.count for one in ([plain], classes))
    )
    yield Row(case, "bytes per change", PEER, *(sum(map(len, one.values())) / plain.count for one in (streams, split)))
    yield Row(case, "encode s", PEER, plain_s, classes_s)
    yield Row(case, "decode s", PEER, plain_decode_s, decode_s)


def encode(old: torch.Tensor, change: Change) -> tuple[list[Change], dict[str, bytes]]:
    classes = by_class(old, change)
    return classes, packed.encode(classes)


def by_class(old: torch.Tensor, change: Change) -> list[Change]:
    """The change as one of several tensors, one for each exponent with changes; the bits within are in class order."""
    order, starts = class_order(old)
    changed = np.zeros(order.size, bool)
    changed[change.indices.numpy()] = True
    places = np.flatnonzero(changed[order])
    within = np.searchsorted(change.indices.numpy(), order[places])
    bounds = np.searchsorted(places, starts)
    pieces = []
    for number, (first, last) in enumerate(zip(bounds[:-1], bounds[1:], strict=True)):
        if first < last:
            spec = TensorSpec(f"{number}", change.spec.dtype, (int(starts[number + 1] - starts[number]),))
            chosen = torch.from_numpy(within[first:last])
            inside = torch.from_numpy(places[first:last] - starts[number])
            pieces.append(Change(spec, inside, change.old[chosen], change.new[chosen]))
    return pieces


def decode(old: torch.Tensor, patches: Sequence[Patch]) -> torch.Tensor:
    """The flat indices of the tensor itself, sorted."""
    order, starts = class_order(old)
    places = [order[starts[int(patch.spec.name)] + patch.indices.numpy()] for patch in patches]
    return torch.from_numpy(np.sort(np.concatenate(places)))


def class_order(old: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """All flat indices by the exponent of their element, and where each of the 256 classes starts, and the end."""
    exponents = (bits(old).numpy().view(np.uint16) >> 7).astype(np.uint8)  # what is above is the sign
    starts = np.concatenate([[0], np.cumsum(np.bincount(exponents, minlength=256))])
    return np.argsort(exponents, kind="stable"), starts
