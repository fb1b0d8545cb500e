"""What the units say to each other: runs, manifests and the pointer, as plain data.

No I/O, no torch, no engine. Parsing is strict: a document that is not exactly what it should be raises IntegrityError,
because falling back to a guess would serve the wrong weights.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, get_args

from shared.document import Document
from shared.document import Json as Json
from shared.errors import IntegrityError, SyncError

FORMAT = 2
LARGEST_VERSION = 10**9 - 1

Kind = Literal["anchor", "delta"]

FLOATS = ("", "BF16", "F16", "F32", "F64")  # what a base model may be cast to

RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
FINGERPRINT = re.compile(r"[0-9a-f]{16}")
CONTENT_HASH = re.compile(r"[0-9a-f]{32}")
TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}\+00:00")


def now() -> str:
    """The time in UTC with microseconds, as text that sorts in the order of time."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def checked_run_id(run_id: str) -> str:
    if not RUN_ID.fullmatch(run_id):
        raise SyncError(
            f"run id {run_id!r} is not usable as a folder name; use letters, digits, '.', '_' and '-', at most 96"
        )
    return run_id


@dataclass(frozen=True)
class TensorSpec:
    """A tensor of the checkpoint. `dtype` is safetensors' name for it, such as "BF16"."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class DataFile:
    """One file in the bucket. `path` is relative to the bucket, `content_hash` is xxh3_128 over all its bytes."""

    path: str
    nbytes: int
    content_hash: str


@dataclass(frozen=True)
class Base:
    """Where version 0 comes from, when it can be had elsewhere than in the bucket.

    `repo` is a folder's absolute path or a repository on the Hub. Its float tensors, cast to `dtype` (safetensors'
    name, empty for as they are), have `fingerprint`.
    """

    repo: str = ""
    commit: str = ""
    fingerprint: str = ""
    dtype: str = ""


@dataclass(frozen=True)
class Run:
    run_id: str
    created_at: str
    model: str
    base: Base = Base()
    format: int = FORMAT

    @property
    def age(self) -> tuple[str, str]:
        """Runs sort by the time of their creation."""
        return self.created_at, self.run_id

    def to_json(self) -> bytes:
        return _dump(asdict(self))

    @classmethod
    def from_json(cls, raw: bytes, source: str) -> "Run":
        doc = Document(raw, source)
        return cls(
            format=doc.supported_format(FORMAT),  # first: in another format the other fields may be anything
            run_id=doc.text("run_id", RUN_ID),
            created_at=doc.text("created_at", TIME),
            model=doc.text("model"),
            base=_base(Document(doc.object("base"), f"{source}, base")),
        )


@dataclass(frozen=True)
class Manifest:
    """One whole version: its files, what it is based on, and the fingerprint of the weights that result.

    No files means that the version is held by reference to the run's base. `seconds` holds the durations of the
    publisher's phases, `trainer` the trainer's own numbers for the step.
    """

    run_id: str
    version: int
    kind: Kind
    files: tuple[DataFile, ...]
    fingerprint: str
    changed: int
    total: int
    writer_epoch: int
    created_at: str
    base_version: int | None = None
    base_fingerprint: str | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    trainer: Mapping[str, Any] = field(default_factory=dict)
    format: int = FORMAT

    @property
    def path(self) -> str:
        return self.files[0].path if self.files else ""

    @property
    def nbytes(self) -> int:
        return sum(file.nbytes for file in self.files)

    @property
    def sparsity(self) -> float:
        """Share of elements that this version leaves unchanged."""
        return 1 - self.changed / self.total if self.total else 1.0

    def to_json(self) -> bytes:
        return _dump({**asdict(self), "path": self.path, "nbytes": self.nbytes})

    @classmethod
    def from_json(cls, raw: bytes, source: str) -> "Manifest":
        doc = Document(raw, source)
        supported = doc.supported_format(FORMAT)  # first: in another format the other fields may be anything
        kind: Kind = "delta" if doc.one_of("kind", get_args(Kind)) == "delta" else "anchor"
        manifest = cls(
            run_id=doc.text("run_id", RUN_ID),
            version=doc.version("version", LARGEST_VERSION),
            kind=kind,
            files=tuple(_data_file(Document(item, source)) for item in doc.array("files")),
            fingerprint=doc.text("fingerprint", FINGERPRINT),
            changed=doc.count("changed"),
            total=doc.count("total"),
            writer_epoch=doc.count("writer_epoch"),
            created_at=doc.text("created_at"),
            base_version=doc.version("base_version", LARGEST_VERSION) if kind == "delta" else None,
            base_fingerprint=doc.text("base_fingerprint", FINGERPRINT) if kind == "delta" else None,
            seconds=doc.numbers("seconds"),
            trainer=doc.object("trainer"),
            format=supported,
        )
        if (doc.text("path"), doc.count("nbytes")) != (manifest.path, manifest.nbytes):
            raise IntegrityError(f"{source}: path and bytes are not those of the files it lists")
        if manifest.changed > manifest.total:
            raise IntegrityError(f"{source}: {manifest.changed} of {manifest.total} elements cannot have changed")
        if kind == "delta":
            manifest._check_delta(source)
        return manifest

    def _check_delta(self, source: str) -> None:
        if self.base_version is not None and self.base_version >= self.version:
            raise IntegrityError(f"{source}: version {self.version} is based on {self.base_version}, not an older one")
        if len(self.files) != 1:
            raise IntegrityError(f"{source}: delta {self.version} lists {len(self.files)} files, a delta is one file")


@dataclass(frozen=True)
class Pointer:
    """The newest whole version of a run. `manifest_xxh3` is xxh3_128 over the manifest's bytes.

    `writer_epoch` is that of the publisher which may write the run, at least that of the manifest; 0 when not stated.
    """

    run_id: str
    version: int
    manifest: str
    manifest_xxh3: str
    writer_epoch: int = 0

    def to_json(self) -> bytes:
        return _dump(asdict(self))

    @classmethod
    def from_json(cls, raw: bytes, source: str) -> "Pointer":
        doc = Document(raw, source)
        return cls(
            run_id=doc.text("run_id", RUN_ID),
            version=doc.version("version", LARGEST_VERSION),
            manifest=doc.text("manifest"),
            manifest_xxh3=doc.text("manifest_xxh3", CONTENT_HASH),
            writer_epoch=doc.count("writer_epoch", absent=0),
        )


@dataclass(frozen=True)
class End:
    """Training ended with this version as the newest; `reason` is empty when it had done all its steps.

    `trainer` holds numbers of the newest sync, as the next version's manifest would.
    """

    run_id: str
    version: int
    ended_at: str
    reason: str = ""
    trainer: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> bytes:
        return _dump(asdict(self))

    @classmethod
    def from_json(cls, raw: bytes, source: str) -> "End":
        doc = Document(raw, source)
        return cls(
            run_id=doc.text("run_id", RUN_ID),
            version=doc.version("version", LARGEST_VERSION),
            ended_at=doc.text("ended_at", TIME),
            reason=doc.text("reason"),
            trainer=doc.object("trainer"),
        )


def _dump(document: Json) -> bytes:
    try:
        return json.dumps(_finite(document), indent=1, allow_nan=False).encode() + b"\n"
    except (TypeError, ValueError) as error:
        raise SyncError(f"cannot be written as JSON: {error}; pass plain numbers, texts, lists and dicts") from error


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: a number that is not finite is written as its name, such as "nan"."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _base(doc: "Document") -> Base:
    fingerprint = doc.text("fingerprint", FINGERPRINT) if doc.text("fingerprint") else ""
    return Base(
        repo=doc.text("repo"),
        commit=doc.text("commit"),
        fingerprint=fingerprint,
        dtype=doc.one_of("dtype", FLOATS, absent=""),
    )


def _data_file(doc: "Document") -> DataFile:
    return DataFile(
        path=doc.text("path"), nbytes=doc.count("nbytes"), content_hash=doc.text("content_hash", CONTENT_HASH)
    )
