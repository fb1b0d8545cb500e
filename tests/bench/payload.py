"""What a sync's payload costs in each encoding, in bytes and seconds, side by side in one run.

Steps are synthetic: bf16 weights of realistic scale, moved as AdamW moves them at the learning rate named.
"""

import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from shared.bits import bits, spec_of
from shared.changes import Change
from shared.container import read_header
from shared.files import Label, read_patches, write_anchor, write_delta

ELEMENTS = 8_000_000
SCALE = 0.02
LEARNING_RATES = (3e-7, 1e-6, 3e-6, 1e-5)
LABEL = Label("bench", 1, "0" * 16, 0, "0" * 16)


@dataclass(frozen=True)
class Row:
    """`ours` is the packed delta; `peer` int32 indices with bf16 values, or a full anchor. Ratios are ours / peer."""

    learning_rate: float
    sparsity: float
    what: str
    ours: float
    peer: float

    @property
    def ratio(self) -> float:
        return self.ours / self.peer


def adamw_step(learning_rate: float) -> tuple[torch.Tensor, Change]:
    """Weights [ELEMENTS] bf16 after a step, and the change that led to them. Directions: N(0, 0.3), clipped at 1."""
    weights = torch.randn(ELEMENTS) * SCALE
    moved = weights - learning_rate * (torch.randn(ELEMENTS) * 0.3).clamp(-1, 1)
    old, new = weights.bfloat16(), moved.bfloat16()
    places = (bits(old) != bits(new)).nonzero().reshape(-1)
    return new, Change(spec_of("weights", new), places, bits(old)[places], bits(new)[places])


def measure(learning_rate: float, folder: Path) -> list[Row]:
    weights, change = adamw_step(learning_rate)
    packed, coo, anchor = (folder / name for name in ("packed", "coo", "anchor"))
    seconds = {
        "packed": timed(lambda: write_delta(packed, LABEL, [change], ELEMENTS, "packed")),
        "coo": timed(lambda: write_delta(coo, LABEL, [change], ELEMENTS, "coo")),
        "read packed": timed(lambda: read_patches(read_header(packed))),
        "read coo": timed(lambda: read_patches(read_header(coo))),
    }
    write_anchor(anchor, LABEL, {"weights": weights})
    size = {path.name: path.stat().st_size for path in (packed, coo, anchor)}
    sparsity = 1 - change.count / ELEMENTS
    return [
        Row(
            learning_rate,
            sparsity,
            "bytes per change, int32 + bf16",
            size["packed"] / change.count,
            size["coo"] / change.count,
        ),
        Row(learning_rate, sparsity, "bytes, full anchor", size["packed"], size["anchor"]),
        Row(learning_rate, sparsity, "encode s, int32 + bf16", seconds["packed"], seconds["coo"]),
        Row(learning_rate, sparsity, "decode s, int32 + bf16", seconds["read packed"], seconds["read coo"]),
    ]


def timed(work: Callable[[], object]) -> float:
    """Seconds, the best of three."""
    best = float("inf")
    for _ in range(3):
        started = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - started)
    return best


def run() -> tuple[Table, list[dict[str, Any]]]:
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        rows = [row for rate in LEARNING_RATES for row in measure(rate, Path(folder))]
    table = Table("learning rate", "sparsity", "what, against peer", "ours", "peer", "ratio")
    for row in rows:
        cells = (f"{row.learning_rate:.0e}", f"{row.sparsity:.4f}", row.what)
        table.add_row(*cells, f"{row.ours:.4g}", f"{row.peer:.4g}", f"{row.ratio:.3f}")
    return table, [{**asdict(row), "ratio": row.ratio} for row in rows]
