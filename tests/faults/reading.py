"""What fresh receivers, in a process of their own, get out of a bucket."""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.conftest import ROOT
from tests.faults.cores import beside_vllm
from tests.faults.places import Place

_DEADLINE_S = 300.0


@dataclass(frozen=True)
class Read:
    """`versions` have kind, fingerprint, and a digest of their bits or the error; `beyond` lists data that retention
    should have deleted, `data` counts all data files.
    """

    versions: Mapping[int, Mapping[str, Any]]
    data: int
    beyond: list[str]

    @property
    def newest(self) -> int:
        return max(self.versions)


def read_back(place: Place, run_id: str, *options: str) -> Read:
    ran = subprocess.run(
        beside_vllm([sys.executable, "-m", "tests.faults.reader", place.name, run_id, *options]),
        cwd=ROOT,
        env=place.whole_environment(f"reader-{run_id}"),
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout.splitlines()[-1])
    return Read({one["version"]: one for one in told["versions"]}, told["data"], told["beyond"])
