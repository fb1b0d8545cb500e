"""When processes of a real vLLM server are killed, it is healthy again by itself, and serves the newest version."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

import pytest

from tests.space_vllm.fakes import publisher
from tests.space_vllm.live_server import API_SERVER, ENGINE_CORE, START_DEADLINE_S, WORKER, Server, serving
from tests.space_vllm.processes import has_ended, wait_until
from tests.space_vllm.tiny import Weights, live_checksums, partly_changed, random_weights, regret

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PROMPT, TOKENS = list(range(7, 31)), 16
CLOSE, FAR = 0.05, 0.3  # of the regret of an answer, under the weights that gave it and under others
RUN = "restarts"


def test_killed_processes_are_replaced_and_the_newest_version_is_served(model_folder: Path, tmp_path: Path) -> None:
    weights = random_weights(81, tied=True)
    with serving(tmp_path, model_folder, "float32", tied=True) as server, publisher(server.bucket, RUN) as out:
        assert server.update(out.publish(weights.items()))[0] == 200
        for seed, victim in enumerate((API_SERVER, ENGINE_CORE), start=82):
            old, weights = weights, partly_changed(weights, seed)
            with replaced(server, victim):
                manifest = out.publish(weights.items())
            assert manifest.kind == "delta"
            status = server.status()
            assert (status["version"], status["fingerprint"]) == (manifest.version, manifest.fingerprint)
            serves(server, weights, old)


@contextmanager
def replaced(server: Server, victim: str) -> Iterator[None]:
    """One of vLLM's processes is killed before the block; after it, all of them are others, and the server is healthy.

    A request that would take longer is under way: vLLM by itself waits for its end before it gives way.
    """
    before = {name: server.processes(name)[0] for name in (API_SERVER, ENGINE_CORE, WORKER)}
    request = Thread(target=wait_for_a_later_version, args=(server,))
    request.start()
    os.kill(before[victim], signal.SIGKILL)
    yield
    wait_until(lambda: server.processes(API_SERVER) not in ([], [before[API_SERVER]]), START_DEADLINE_S)
    assert all(has_ended(process) for process in before.values())
    server.running.wait_for_200(f"{server.url}/health", START_DEADLINE_S)
    request.join()


def wait_for_a_later_version(server: Server) -> None:
    with suppress(OSError):
        server.call("/weights/status?version=99&wait=50")


def serves(server: Server, weights: Weights, old: Weights) -> None:
    assert server.checksums() == live_checksums(weights, server.dtype)
    status, tokens = server.greedy(PROMPT, TOKENS)
    assert status == 200
    assert regret(weights, PROMPT, tokens) < CLOSE
    assert regret(old, PROMPT, tokens) > FAR
