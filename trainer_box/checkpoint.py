"""Checkpoints that a run can go on from: which one is whole, what it was saved at, and whether it is all there.

`sync.json` is written last, so that a folder without it was broken off. Knows the names of the files that transformers
and TRL write, and of those that would be passed over in silence when missing; nothing of how they are loaded.
"""

import json
import os
import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from transformers import TrainerState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from shared.document import Document
from shared.errors import IntegrityError, SyncError
from shared.types import FINGERPRINT, LARGEST_VERSION, RUN_ID, Json

FILE = "sync.json"
_FOLDER = re.compile(rf"{PREFIX_CHECKPOINT_DIR}-([0-9]+)")
_TRAINER, _ROLLOUTS = "trainer_state.json", "rollout_state.json"
_NEEDED = (_TRAINER, _ROLLOUTS, "optimizer.pt", "scheduler.pt")
_MODELS = ("model.safetensors", "model.safetensors.index.json")
_UNREADABLE = (
    IntegrityError,
    OSError,
    RuntimeError,
    ValueError,
    KeyError,
    TypeError,
    EOFError,
    pickle.UnpicklingError,
    SafetensorError,
)


@dataclass(frozen=True)
class Checkpoint:
    """`version` is the sync point it was saved at, `fingerprint` that of its weights in the served dtype."""

    folder: Path
    run_id: str
    version: int
    fingerprint: str

    def check_loaded(self, counted: str) -> None:
        """Raises SyncError unless the loaded weights count, in the served dtype, to what was saved.

        What that cast rounds away is not compared.
        """
        if counted != self.fingerprint:
            raise SyncError(
                f"the weights loaded from {self.folder} have fingerprint {counted} in the served dtype, saved were "
                f"{self.fingerprint}: the model file is damaged, or of another model than --model; delete that folder "
                "to go on from an older checkpoint"
            )


def begin(folder: Path) -> None:
    """Make a checkpoint's folder, which is not whole until it is completed."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).unlink(missing_ok=True)


def complete(folder: Path, state: Json) -> None:
    """Mark a checkpoint whole whose other files are written; all of it is on the disk when this returns."""
    part = folder / f"{FILE}.part"
    part.write_text(json.dumps(state))
    for path in (*folder.iterdir(), folder):
        _flush(path)
    part.replace(folder / FILE)
    _flush(folder)
    _flush(folder.parent)


def newest(folder: Path, run_id: str, report: Callable[[str], None]) -> Checkpoint:
    """The newest whole checkpoint of the run, in `folder`. Raises SyncError when there is none, or it lacks a file."""
    foreign: Checkpoint | None = None
    broken: list[Path] = []
    for place in _folders(folder):
        if not (place / FILE).is_file():
            broken.append(place)
            continue
        found = _read(place)
        if found.run_id == run_id:
            for passed in broken:
                report(f"{passed} is passed over: it has no {FILE}, so saving it was broken off")
            _check_files(place)
            return found
        foreign = foreign or found
    if foreign:
        raise SyncError(
            f"{foreign.folder} belongs to run {foreign.run_id!r}, not to {run_id!r}; resume with --run-id "
            f"{foreign.run_id}"
        )
    if broken:
        raise SyncError(
            f"{broken[0]} has no {FILE}: saving it was broken off, or another trainer did; there is no other "
            "checkpoint to resume from, so start anew with another --run-id"
        )
    raise SyncError(f"there is no checkpoint in {folder} to resume from; check --run-id and --output-dir")


@contextmanager
def loading(folder: str | Path, what: str) -> Iterator[None]:
    """Whatever a damaged or foreign file makes its reader raise is one SyncError."""
    try:
        yield
    except _UNREADABLE as error:
        reason = " ".join(f"{type(error).__name__} {error}".split())[:300]
        raise SyncError(
            f"{what} of {folder} cannot be loaded: {reason}; delete that folder to go on from an older checkpoint"
        ) from error


def _folders(folder: Path) -> list[Path]:
    """Newest step first."""
    found = [(int(match[1]), path) for path in folder.iterdir() if (match := _FOLDER.fullmatch(path.name))]
    return [path for _, path in sorted(found, reverse=True) if path.is_dir()]


def _read(folder: Path) -> Checkpoint:
    try:
        saved = Document((folder / FILE).read_bytes(), FILE)
        run_id, version = saved.text("run_id", RUN_ID), saved.version("version", LARGEST_VERSION)
        return Checkpoint(folder, run_id, version, saved.text("fingerprint", FINGERPRINT))
    except (OSError, IntegrityError) as error:
        raise SyncError(
            f"{folder} has no readable {FILE}, was it saved by this trainer? {error}; delete it to go on from an "
            "older checkpoint"
        ) from error


def _check_files(folder: Path) -> None:
    """What transformers and TRL need, and would do without in silence."""
    missing = [name for name in _NEEDED if not (folder / name).is_file()]
    if not any((folder / name).is_file() for name in _MODELS):
        missing.append(_MODELS[0])
    if missing:
        raise SyncError(
            f"{folder} lacks {', '.join(missing)}; put it back, or delete {folder} to go on from an older checkpoint"
        )
    with loading(folder, _TRAINER):
        state = TrainerState.load_from_json(str(folder / _TRAINER))  # it may hold a NaN, which no Document does
        Document(vars(state), _TRAINER).count("global_step")
    with loading(folder, _ROLLOUTS):
        Document((folder / _ROLLOUTS).read_bytes(), _ROLLOUTS).count("prompt_index")


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
