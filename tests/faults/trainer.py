"""`python -m tests.faults.trainer`: a trainer without training, whose weights change as a seed says.

Publisher, delivery and sync are the project's own. Standard input says what to do, a command a line; standard output
tells what happened, a JSON object a line. Started again on the same folder, it goes on from what it saved there.
"""

import argparse
import json
import os
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from shared.bucket import open_bucket
from shared.errors import SyncError
from tests.faults.halting import HaltingBucket
from tests.faults.story import first, following
from tests.space_vllm.tiny import Weights
from trainer_box import checkpoint
from trainer_box.checkpoint import Checkpoint
from trainer_box.delivery import Delivery, Sync
from trainer_box.publisher import Publisher
from trainer_box.replica import Replica
from trainer_box.weight_sync import Patience, WeightSync

_MODEL = "model.safetensors"
_one_at_a_time = threading.Lock()


@dataclass
class Trained:
    step: int
    weights: Weights
    start: Checkpoint | None = None


def main() -> int:
    arguments = _arguments()
    try:
        bucket = HaltingBucket(open_bucket(arguments.bucket, os.environ.get("HF_TOKEN")), _tell_path)
        train(arguments, bucket, _load(arguments) or Trained(0, first(arguments.seed)))
    except SyncError as error:
        tell("stopped", error=f"{type(error).__name__}: {error}")
        return 1
    return 0


def train(arguments: argparse.Namespace, bucket: HaltingBucket, trained: Trained) -> None:
    """A sync point of the weights it starts with, and then what it is told to."""
    after = trained.start.version if trained.start else -1
    with (
        Publisher(bucket, arguments.run_id, after=after) as publisher,
        Delivery(bucket, publisher, Replica(arguments.url), (_tell_sync,), _report) as delivery,
    ):
        patience = Patience(arguments.max_staleness, arguments.patience)
        sync = WeightSync(publisher, delivery, patience, trained.start, _report)
        _point(sync, trained)
        for line in sys.stdin:
            command, _, rest = line.strip().partition(" ")
            if command == "point":
                trained.step += 1
                trained.weights = following(trained.weights, arguments.seed, trained.step)
                _point(sync, trained)
            elif command == "anchor":
                publisher.rebase()
            elif command == "halt":
                bucket.arm(rest)
            elif command == "go":
                bucket.go_on()
            elif command == "save":
                _save(Path(arguments.folder), sync, trained)
            elif command == "end":
                sync.flush(trained.weights.items)
                tell("ended", version=sync.point, step=trained.step)
                return


def tell(event: str, **values: Any) -> None:
    with _one_at_a_time:  # also the thread that delivers tells
        print(json.dumps({"event": event, **values}), flush=True)


def _point(sync: WeightSync, trained: Trained) -> None:
    started = time.monotonic()
    version = sync(trained.weights.items, {"step": trained.step}, ())
    tell("point", version=version, step=trained.step, seconds=time.monotonic() - started)


def _save(folder: Path, sync: WeightSync, trained: Trained) -> None:
    checkpoint.begin(folder)
    save_file(trained.weights, folder / _MODEL)
    checkpoint.complete(folder, {**sync.checkpoint_state(trained.weights.items), "step": trained.step})
    tell("saved", step=trained.step)


def _load(arguments: argparse.Namespace) -> Trained | None:
    folder = Path(arguments.folder)
    if not (folder / checkpoint.FILE).exists():
        return None
    saved = json.loads((folder / checkpoint.FILE).read_text())
    start = Checkpoint(folder, saved["run_id"], saved["version"], saved["fingerprint"])
    return Trained(saved["step"], load_file(folder / _MODEL), start)


def _tell_path(event: str, path: str) -> None:
    tell(event, path=path)


def _tell_sync(sync: Sync) -> None:
    tell("synced", version=sync.manifest.version, kind=sync.manifest.kind, seconds=sync.seconds)


def _report(line: str) -> None:
    tell("line", text=line)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.trainer", description=__doc__)
    parser.add_argument("--bucket", required=True)
    parser.add_argument("--run-id", required=True)
    parser.add_argument("--url", required=True, help="of the Space")
    parser.add_argument("--folder", required=True, help="of the checkpoint")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--max-staleness", type=int, required=True)
    parser.add_argument("--patience", type=float, required=True, help="seconds that a sync point may wait")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
