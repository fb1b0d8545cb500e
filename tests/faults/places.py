"""The two kinds of buckets that rows are played in, and what a process needs in its environment to use one."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tests.conftest import ROOT
from tests.hub import StandIn, stand_in
from tests.space_vllm.fakes import KEY

Kind = Literal["folder", "stand-in Hub"]

_NAME, _TOKEN = "somebody/runs", "hf_a_token_for_tests"


@dataclass(frozen=True)
class Place:
    """`name` is the bucket as `open_bucket` takes it. Each process has its own cache of the Hub's client."""

    kind: Kind
    name: str
    folder: Path
    hub: StandIn | None = None
    settings: Mapping[str, str] = field(default_factory=dict)

    def environment(self, who: str) -> dict[str, str]:
        """What the process `who` needs beside what this one has."""
        own = {"BUCKET": self.name, "VLLM_API_KEY": KEY, "PYTHONPATH": str(ROOT)}
        return {**own, **(self.hub.environment(self.folder / f"cache-{who}") if self.hub else {}), **self.settings}

    def whole_environment(self, who: str) -> dict[str, str]:
        return {**os.environ, **self.environment(who)}


@contextmanager
def place_of(kind: Kind, folder: Path) -> Iterator[Place]:
    if kind == "folder":
        yield Place(kind, f"local:{folder / 'bucket'}", folder)
        return
    with stand_in(folder / "hub", token=_TOKEN, bucket=_NAME) as hub:
        settings = {"HF_TOKEN": _TOKEN, "HF_XET_TELEMETRY_ENABLED": "0"}
        yield Place(kind, _NAME, folder, hub, settings)
