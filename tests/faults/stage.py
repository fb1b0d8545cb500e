"""What rows share: a live Space on one bucket, with a proxy before it and a plan of faults in its worker."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.places import Kind, Place, place_of
from tests.faults.proxy import Proxy, proxy_of
from tests.space_vllm import faults
from tests.space_vllm.faults import Plan
from tests.space_vllm.live_server import Server, serving
from tests.space_vllm.tiny import make_model, save

CLOCK = 10  # how much faster than a minute each a connection is given up and the weights are recounted
_MINUTE = {"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": str(60 // CLOCK), "AUDIT_SECONDS": str(60 // CLOCK)}


@dataclass
class Stage:
    """Trainers reach the Space through the proxy, everybody else without it."""

    place: Place
    server: Server
    proxy: Proxy
    plan: Plan
    seeds: Iterator[int] = field(default_factory=lambda: itertools.count(1))


@contextmanager
def stage(kind: Kind, folder: Path) -> Iterator[Stage]:
    folder.mkdir(parents=True, exist_ok=True)
    model, plan = folder / "model", Plan(folder)
    save(make_model(), model)
    with place_of(kind, folder) as place:
        environment = {**plan.environment, **place.environment("space"), **_MINUTE}
        with (
            serving(folder, model, "float32", True, faults.ARGUMENTS, environment) as server,
            proxy_of(server.url) as proxy,
        ):
            yield Stage(place, server, proxy, plan)
