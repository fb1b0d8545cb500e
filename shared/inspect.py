"""Describes one anchor or delta file: `python -m shared.inspect FILE`.

Reads the file alone, without its run: it tells what the file says of itself and whether its own checksum holds, not
whether a manifest agrees. Patches by other tools (`X.indices` with `X.values`) and plain safetensors are known too.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from shared.bits import itemsize
from shared.container import Header, read_header
from shared.coo import INDICES, VALUES
from shared.errors import IntegrityError, SyncError
from shared.files import read_table
from shared.types import TensorSpec

LONGEST_TABLE = 20

Row = tuple[str, ...]


def describe(path: Path) -> str:
    """Plain text of several lines. Raises IntegrityError when the file is damaged, OSError when it cannot be read."""
    header = read_header(path)
    labelled = "run_id" in header.metadata and "fingerprint" in header.metadata
    if labelled and not header.checksum:
        raise IntegrityError(f"{path.name} is damaged: it is labelled as a file of a run, but its checksum is gone")
    if labelled and header.metadata.get("kind") == "delta":
        return _delta(header)
    if header.metadata.get("sparse", "").lower() == "true" or (header.tensors and _complete(header, _values(header))):
        return _foreign_delta(header)
    return _anchor(header, labelled)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m shared.inspect", description="Describe an anchor or delta file.")
    parser.add_argument("file", type=Path, metavar="FILE", help="a .safetensors file")
    path: Path = parser.parse_args(arguments).file
    try:
        print(describe(path))
    except SyncError as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{path} cannot be read: {error.strerror}", file=sys.stderr)
        return 1
    return 0


def _delta(header: Header) -> str:
    table = read_table(header)
    changed, total = sum(count for _, count in table), _number(header, "total")
    facts = [
        ("encoding", _plain(header.metadata.get("encoding", "not stated"))),
        *_label(header),
        ("base version", _stated(header, "base_version")),
        ("base fingerprint", _stated(header, "base_fingerprint")),
        *_sizes(header, changed),
        ("changed", f"{changed} of {total} elements in {len(table)} tensors"),
        ("sparsity", f"{_share_unchanged(changed, total):.4f}"),
    ]
    rows = [
        (f"{count}", f"{spec.numel}", f"{_share_unchanged(count, spec.numel):.4f}", *_kind_and_name(spec))
        for spec, count in sorted(table, key=lambda item: -item[1])
    ]
    return _text(header, "delta", facts, ("changed", "of", "sparsity", "dtype", "shape", "tensor"), rows)


def _foreign_delta(header: Header) -> str:
    values = _values(header)
    if not _complete(header, values):
        raise IntegrityError(f"{header.path.name} says it is sparse, but not all its tensors are indices with values")
    changed = sum(spec.numel for spec in values.values())
    stated = _number(header, "changed_params") if "changed_params" in header.metadata else changed
    if stated != changed:
        raise IntegrityError(f"{header.path.name} says that {stated} elements changed, it holds {changed}")
    facts = [
        ("encoding", "coo, without a label of this project"),
        ("version", _stated(header, "model_version")),
        *_sizes(header, changed),
        ("changed", f"{changed} elements in {len(values)} tensors"),
        ("sparsity", "not known: the file does not say how large the tensors are"),
    ]
    rows = [
        (f"{spec.numel}", spec.dtype, header.tensors[name + INDICES].dtype, _plain(name))
        for name, spec in sorted(values.items(), key=lambda item: -item[1].numel)
    ]
    return _text(header, "delta", facts, ("changed", "dtype", "indices", "tensor"), rows)


def _anchor(header: Header, labelled: bool) -> str:
    specs = sorted(header.tensors.values(), key=lambda spec: -spec.numel)
    facts = [
        *(_label(header) if labelled else [("label", "none: not written for a run")]),
        *_sizes(header, None),
        ("elements", f"{sum(spec.numel for spec in specs)} in {len(specs)} tensors"),
    ]
    rows = [(f"{spec.numel}", f"{spec.numel * itemsize(spec.dtype)}", *_kind_and_name(spec)) for spec in specs]
    return _text(header, "anchor", facts, ("elements", "bytes", "dtype", "shape", "tensor"), rows)


def _label(header: Header) -> list[Row]:
    return [
        ("format", _stated(header, "format")),
        ("run", _stated(header, "run_id")),
        ("version", _stated(header, "version")),
        ("fingerprint", _stated(header, "fingerprint")),
    ]


def _sizes(header: Header, changed: int | None) -> list[Row]:
    nbytes = header.path.stat().st_size
    per_change = [("bytes per change", f"{nbytes / changed:.2f}")] if changed else []
    checksum = f"holds ({header.checksum})" if header.checksum else "no checksum"
    return [("checksum", checksum), ("bytes", f"{nbytes}"), *per_change]


def _text(header: Header, kind: str, facts: Iterable[Row], columns: Row, rows: Sequence[Row]) -> str:
    lines = [f"{_plain(header.path.name)}: {kind}", *(f"  {name:<18}{value}" for name, value in facts)]
    shown = rows if len(rows) <= LONGEST_TABLE else rows[: LONGEST_TABLE - 1]
    if shown:
        widths = [max(map(len, column)) for column in zip(columns, *shown, strict=True)]
        lines += ["", *(_aligned(row, widths) for row in (columns, *shown))]
    if hidden := len(rows) - len(shown):
        lines.append(f"  ... and {hidden} more tensors")
    return "\n".join(lines)


def _aligned(row: Row, widths: Sequence[int]) -> str:
    """All cells to the right, but for the last, which is a name."""
    return "  " + "  ".join([*(f"{cell:>{width}}" for cell, width in zip(row[:-1], widths, strict=False)), row[-1]])


def _kind_and_name(spec: TensorSpec) -> Row:
    return spec.dtype, "x".join(map(str, spec.shape)) or "scalar", _plain(spec.name)


def _values(header: Header) -> dict[str, TensorSpec]:
    """The value tensors of a sparse patch by the name of the tensor that they change."""
    return {name.removesuffix(VALUES): spec for name, spec in header.tensors.items() if name.endswith(VALUES)}


def _complete(header: Header, values: dict[str, TensorSpec]) -> bool:
    """Whether the file holds nothing but `values`, each with as many indices."""
    indices = [header.tensors.get(name + INDICES) for name in values]
    fitting = [one for one, spec in zip(indices, values.values(), strict=True) if one and one.shape == spec.shape]
    return 2 * len(fitting) == len(header.tensors)


def _number(header: Header, key: str) -> int:
    text = header.metadata.get(key, "")
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise IntegrityError(f"{header.path.name} should state {key} as a number, found {text[:40]!r}")
    return int(text)


def _stated(header: Header, key: str) -> str:
    return _plain(header.metadata.get(key, "not stated"))


def _plain(text: str) -> str:
    """Text from a file, without what a terminal would act on."""
    return text if text.isprintable() else repr(text)


def _share_unchanged(changed: int, total: int) -> float:
    return 1 - changed / total if total else 1.0


if __name__ == "__main__":
    sys.exit(main())
