"""A running monitor over a folder that a test fills, with stand-ins for one replica and the environment."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from shared import layout
from shared.types import End, Json, Manifest
from tests.conftest import ROOT, RunningProcess
from tests.shared.monitor.runs import manifest, run, write, write_run
from tests.ui.replicas import StubStatus, stub

START_S = 120.0
ANCHOR_BYTES = 40_000


@dataclass
class Monitor:
    url: str
    folder: Path
    replica: StubStatus
    environment: StubStatus

    def reset(self) -> None:
        """An empty bucket, a replica without a version, an environment that is well."""
        for item in self.folder.iterdir():
            if item.is_dir():
                shutil.rmtree(item)
        self.replica.status = self.environment.status = 200
        self.replica.document = {"state": "serving", "counters": {}}
        self.environment.document = {"sessions": 3, "capacity": 256, "step_ms": {"p50": 1.2}}

    def write(
        self, run_id: str, manifests: Sequence[Manifest] = (), end: End | None = None, age_s: float = 60
    ) -> None:
        write_run(self.folder, run(run_id, age_s, datetime.now(UTC)), manifests, end)

    def write_rollouts(self, run_id: str, version: int, *rollouts: Json) -> None:
        lines = "".join(json.dumps(rollout) + "\n" for rollout in rollouts)
        write(self.folder, layout.rollouts(run_id, version), lines.encode())


@contextmanager
def monitor(folder: Path, log: Path) -> Iterator[Monitor]:
    with stub({}) as replica, stub({}) as environment:
        units = (f"--vllm-url={replica.url}", f"--env-url={environment.url}")
        with served(folder, log, *units) as url:
            yield Monitor(url, folder, replica, environment)


@contextmanager
def served(
    folder: Path, log: Path, *arguments: str, port: int | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[str]:
    """The address of `python -m shared.monitor` over a folder."""
    port = port or free_port()
    command = [sys.executable, "-m", "shared.monitor", f"--bucket=local:{folder}", f"--port={port}", *arguments]
    unset = ("RUN_ID", "HOST", "MONITOR_USER", "MONITOR_PASSWORD")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    with log.open("ab") as out:
        child = subprocess.Popen(command, cwd=ROOT, env={**environment, **(settings or {})}, stdout=out, stderr=out)
    started = RunningProcess(child, log)
    try:
        started.wait_for_200(f"http://127.0.0.1:{port}/health", START_S)
        yield f"http://127.0.0.1:{port}"
    finally:
        started.stop()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def training(run_id: str, count: int, every_s: float = 20, silent_s: float = 5, gain: float = 1.0) -> list[Manifest]:
    """A run with all the numbers that a trainer tells: rewards that rise by `gain`, an anchor in its middle."""
    now = datetime.now(UTC)
    return [
        manifest(
            version,
            "anchor" if version in (0, count // 2) else "delta",
            (ANCHOR_BYTES if version else 0) if version in (0, count // 2) else 5000 + 97 * (version % 7),
            silent_s + every_s * (count - 1 - version),
            run_id,
            now,
            **(_told(version, count, gain) if version else {}),
        )
        for version in range(count)
    ]


def _told(version: int, count: int, gain: float) -> dict[str, float]:
    share = version / count
    wobble = 0.04 * ((version * 7) % 5 - 2)
    solved = min(max(gain * share * 0.8 + wobble + 0.1, 0.0), 1.0)
    return {
        "step": version,
        "max_steps": count + 20,
        "reward": gain * share - 0.4 + wobble,
        "environment/solved": solved,
        "environment/reward_solved": solved,
        "environment/reward_greens": 0.02,
        "environment/reward_yellows": 0.01,
        "environment/reward_turns": -0.1,
        "environment/reward_invalid": 0.3 * (share - 1),
        "reward_std": 0.4 + wobble,
        "entropy": 0.8 - 0.5 * share,
        "ratio": 1 + wobble / 100,
        "sample/staleness_mean": 1.5 + 2 * wobble,
        "sample/staleness_max": 2,
        "sample/staleness_limit": 2,
        "sync/version": version - 1,
        "sync/stage_ms": 300 + 1000 * abs(wobble),
        "sync/pause_ms": 80 + 200 * abs(wobble),
        "sync/duration_s": 2 + wobble,
    }
