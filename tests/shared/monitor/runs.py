"""Runs as a publisher and a trainer leave them, without either: as plain data, and as files of a folder bucket."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from shared import layout
from shared.monitor.snapshot import Snapshot
from shared.monitor.units import Answer
from shared.types import Base, DataFile, End, Json, Kind, Manifest, Pointer, Run

NOW = datetime(2030, 1, 1, 12, 0, 0, tzinfo=UTC)
MODEL_BYTES = 20_000


def at(age_s: float, now: datetime = NOW) -> str:
    return (now - timedelta(seconds=age_s)).isoformat(timespec="microseconds")


def run(run_id: str = "r1", age_s: float = 3600, now: datetime = NOW) -> Run:
    return Run(run_id, at(age_s, now), "tiny", Base("tiny", dtype="BF16"))


def fingerprint(version: int) -> str:
    return f"{version:016x}"


def manifest(
    version: int,
    kind: Kind = "delta",
    nbytes: int = 5000,
    age_s: float = 7,
    run_id: str = "r1",
    now: datetime = NOW,
    **trainer: Any,
) -> Manifest:
    """Without bytes it is by reference. Of 10,000 elements, a delta changes 250."""
    path = (layout.anchor if kind == "anchor" else layout.delta)(run_id, version)
    return Manifest(
        run_id=run_id,
        version=version,
        kind=kind,
        files=(DataFile(path, nbytes, "0" * 32),) if nbytes else (),
        fingerprint=fingerprint(version),
        changed=10_000 if kind == "anchor" else 250,
        total=10_000,
        writer_epoch=1,
        created_at=at(age_s, now),
        base_version=version - 1 if kind == "delta" else None,
        base_fingerprint=fingerprint(version - 1) if kind == "delta" else None,
        seconds={"diff": 0.25, "encode": 0.05, "upload": 1.5},
        trainer=trainer,
    )


def chain(count: int, every_s: float = 20, **fields: Any) -> list[Manifest]:
    """Version 0 by reference and deltas after it, the newest one `every_s` ago."""
    deltas = [manifest(version, age_s=every_s * (count - version), **fields) for version in range(1, count)]
    return [manifest(0, "anchor", 0, every_s * count, **fields), *deltas]


def showing(*manifests: Manifest, **fields: Any) -> Snapshot:
    """Of a bucket that has all data files of them."""
    stored = frozenset(file.path for manifest in manifests for file in manifest.files)
    known = Snapshot("local:/b", 1, (run(),), run(), manifests=manifests, stored=stored)
    return replace(known, **fields)


def serving(version: int, run_id: str = "r1", **said: Any) -> Answer:
    """What a replica answers that serves a version as it was published."""
    return Answer(
        {"run_id": run_id, "version": version, "fingerprint": fingerprint(version), "state": "serving", **said}
    )


def rollout(*guesses: tuple[str, str], text: str = "", version: int = 1, **numbers: float) -> Json:
    """One game: words and what the environment answered. `text` is what the model said beside its first guess."""
    messages: list[Json] = [{"role": "user", "content": "Guess the word."}]
    for number, (word, answer) in enumerate(guesses):
        call = {"type": "function", "function": {"name": "guess", "arguments": {"word": word}}}
        messages.append({"role": "assistant", "content": "" if number else text, "tool_calls": [call]})
        messages.append({"role": "tool", "name": "guess", "content": answer})
    told = {name.replace("__", "/"): value for name, value in numbers.items()}
    return {"version": version, "messages": messages, "numbers": told}


def write(folder: Path, path: str, content: bytes) -> None:
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_bytes(content)


def write_run(folder: Path, run: Run, manifests: Iterable[Manifest] = (), end: End | None = None) -> None:
    """In the order that a publisher has: data, manifest, pointer."""
    write(folder, layout.run_file(run.run_id), run.to_json())
    for one in manifests:
        for file in one.files:
            write(folder, file.path, b"x")
        write(folder, layout.manifest(run.run_id, one.version), one.to_json())
        place = layout.manifest(run.run_id, one.version)
        write(folder, layout.pointer(run.run_id), Pointer(run.run_id, one.version, place, "0" * 32).to_json())
    if end is not None:
        write(folder, layout.end(run.run_id, end.version), end.to_json())
