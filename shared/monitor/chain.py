"""What is in the bucket: anchors and deltas in order, what each is based on, who serves it, and what goes next. Pure.

Knows the rule by which the publisher deletes data: kept are the chains that start at the newest two anchors.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from shared.monitor.numbers import full_bytes
from shared.monitor.replicas import replicas_of
from shared.monitor.snapshot import Snapshot
from shared.monitor.words import NOTHING, counted, listed, size
from shared.types import Json, Manifest

BARS, ROWS = 60, 12
COLUMNS = ("version", "kind", "payload", "base", "changed", "fingerprint", "data", "served by")
CAPTION = (
    "Each bar is a version, blue for an anchor; a full bar is the whole model, and the height goes with the cube root "
    "of the bytes. A receiver starts at an anchor and goes on by deltas. Hollow: the data was deleted, the manifest "
    "stays. Striped: goes with the next anchor. A triangle: a replica serves it."
)


@dataclass(frozen=True)
class Link:
    """`data` is one of: by reference, kept, goes with the next anchor, deleted. `anchor` is the one beside it."""

    manifest: Manifest
    data: str
    anchor: Manifest | None
    served_by: tuple[str, ...]


def links(snapshot: Snapshot, count: int) -> list[Link]:
    """The newest, newest first."""
    newest = _newest_anchor(snapshot)
    serving: dict[int, list[str]] = {}
    for replica in replicas_of(snapshot):
        if replica.lag is not None and replica.version is not None:
            serving.setdefault(replica.version, []).append(replica.name)
    return [
        Link(
            manifest,
            _data(snapshot, manifest, newest),
            snapshot.extra_anchors.get(manifest.version),
            tuple(serving.get(manifest.version, ())),
        )
        for manifest in reversed(snapshot.manifests[-count:])
    ]


def summary(snapshot: Snapshot) -> str:
    """How much there is, in words; empty without a version."""
    manifests = snapshot.manifests
    if not manifests:
        return ""
    anchors = [m for m in (*manifests, *snapshot.extra_anchors.values()) if m.kind == "anchor" and m.files]
    deltas = [m for m in manifests if m.kind == "delta"]
    by_reference = sum(not m.files for m in manifests)
    counts = [
        f"{counted(len(anchors), 'anchor')} with {size(sum(m.nbytes for m in anchors))}" if anchors else "",
        f"{counted(len(deltas), 'delta')} with {size(sum(m.nbytes for m in deltas))}" if deltas else "",
        f"{by_reference} by reference to the base model" if by_reference else "",
    ]
    return f"Published so far: {listed([count for count in counts if count])}. {_retention(snapshot)}"


def bars(snapshot: Snapshot) -> list[Json]:
    """For the strip, oldest first: height in percent, and the words that say the same."""
    shown = list(reversed(links(snapshot, BARS)))
    largest = max([full_bytes(snapshot.run, snapshot.manifests) or 1, *map(_bytes, shown)])
    return [_bar(link, math.cbrt(_bytes(link) / largest)) for link in shown]


def rows(snapshot: Snapshot) -> list[Json]:
    """For the table under COLUMNS, the newest first."""
    return [{"cells": list(_cells(link)), "data": link.data} for link in links(snapshot, ROWS)]


def _newest_anchor(snapshot: Snapshot) -> int | None:
    """The newest version that a receiver can start at with what the bucket has now."""
    own = [m for m in snapshot.manifests if m.kind == "anchor" and m.files]
    whole = [m.version for m in (*own, *snapshot.extra_anchors.values()) if _is_stored(snapshot, m)]
    return max(whole, default=None)


def _data(snapshot: Snapshot, manifest: Manifest, newest_anchor: int | None) -> str:
    if not manifest.files:
        return "by reference"
    if not _is_stored(snapshot, manifest):
        return "deleted"
    return "goes with the next anchor" if newest_anchor is not None and manifest.version < newest_anchor else "kept"


def _is_stored(snapshot: Snapshot, manifest: Manifest) -> bool:
    return all(file.path in snapshot.stored for file in manifest.files)


def _retention(snapshot: Snapshot) -> str:
    newest = _newest_anchor(snapshot)
    going = [m for m in snapshot.manifests if _data(snapshot, m, newest) == "goes with the next anchor"]
    gone = sum(bool(m.files) and not _is_stored(snapshot, m) for m in snapshot.manifests)
    deleted = f"The data of {gone} was deleted" if gone else "Nothing was deleted"
    if not going:
        return f"{deleted}, and nothing goes with the next anchor."
    return f"{deleted}; with the next anchor {len(going)} more go, {size(sum(m.nbytes for m in going))}."


def _bytes(link: Link) -> int:
    return max(link.manifest.nbytes, link.anchor.nbytes if link.anchor else 0)


def _bar(link: Link, share: float) -> Json:
    manifest = link.manifest
    kind = "anchor" if manifest.kind == "anchor" or link.anchor else "delta"
    base = f" on v{manifest.base_version}" if manifest.base_version is not None else ""
    words = f"v{manifest.version} {manifest.kind}{base}, {size(manifest.nbytes)}, {link.data}"
    return {
        "height": f"{max(100 * share, 4):.0f}",
        "kind": kind,
        "data": link.data.split(" ")[0],
        "words": words + (f", served by {listed(list(link.served_by))}" if link.served_by else ""),
        "served": bool(link.served_by),
    }


def _cells(link: Link) -> Iterator[str]:
    manifest = link.manifest
    yield f"v{manifest.version}"
    yield f"{manifest.kind} and anchor" if link.anchor else manifest.kind
    yield size(manifest.nbytes) if manifest.files else NOTHING
    yield NOTHING if manifest.base_version is None else f"v{manifest.base_version}"
    yield f"{100 * (1 - manifest.sparsity):.3g} %"
    yield manifest.fingerprint
    yield link.data
    yield listed(list(link.served_by)) or NOTHING
