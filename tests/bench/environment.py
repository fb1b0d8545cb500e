"""How many sessions the environment holds, and how fast, beside a minimal OpenEnv environment served as its template
does. The players are a second process on the same machine, and check that every session sees its own game only.
"""

import asyncio
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil
from rich.table import Table

from shared.wordle import feedback, load_words, render, secret_for
from tests.bench.players import Answers, Outcome, Plan, Use, play

SESSIONS = (256, 512)
STARTING_S = 90.0
FULL = load_words("full")


def guesses(seed: int) -> list[str]:
    """Five words that are not the game's own, then that one."""
    secret = secret_for(seed, FULL)
    others = [FULL.answers[(37 * seed + 11 * i) % len(FULL.answers)] for i in range(6)]
    return [word for word in others if word != secret][:5] + [secret]


def is_own_game(seed: int, answers: Answers) -> bool:
    secret = secret_for(seed, FULL)
    texts = [answer["observation"]["text"] for answer in answers]
    shown = [f"{render(word, feedback(word, secret))} {5 - i} left" for i, word in enumerate(guesses(seed)[:5])]
    return texts == [*shown, f"{render(secret, '+++++')} won"] and answers[-1]["observation"]["secret"] == secret


def is_own_echo(seed: int, answers: Answers) -> bool:
    return [answer["observation"]["text"] for answer in answers] == guesses(seed) and bool(answers[-1]["done"])


OURS = ("tests.bench.our_environment", Plan(guesses, is_own_game))
PEER = ("tests.bench.template_environment", Plan(guesses, is_own_echo))


@contextmanager
def serving(module: str, sessions: int) -> Iterator[tuple[str, psutil.Process]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen([sys.executable, "-m", module, str(port), str(sessions)]) as server:
        try:
            _wait_for(url, server)
            yield url, psutil.Process(server.pid)
        finally:
            server.kill()


def _wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + STARTING_S
    while time.monotonic() < deadline and server.poll() is None:
        with suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5):
            return
        time.sleep(0.2)
    raise TimeoutError(f"{url} is not healthy after {STARTING_S:.0f} s, exit code {server.poll()}")


def measure(module: str, plan: Plan, sessions: int) -> Outcome:
    with serving(module, sessions) as (url, process):
        asyncio.run(play(url, min(sessions, 8), plan, lambda: use_of(process)))  # warm
        return asyncio.run(play(url, sessions, plan, lambda: use_of(process)))


def use_of(process: psutil.Process) -> Use:
    times = process.cpu_times()
    return Use(process.memory_info().rss, times.user + times.system)


def numbers(outcome: Outcome) -> dict[str, float]:
    latencies = sorted(outcome.latencies_s)
    return {
        "failed sessions": outcome.failed,
        "steps per second": outcome.steps_per_s,
        "step p50 ms": 1000 * latencies[len(latencies) // 2],
        "step p99 ms": 1000 * latencies[int(0.99 * len(latencies))],
        "server CPU us per step": 1e6 * outcome.cpu_s / len(latencies),
        "connect all s": outcome.connect_s,
        "kB per session": outcome.resident_bytes / outcome.sessions / 1000,
    }


def run(sessions: tuple[int, ...] = SESSIONS) -> tuple[Table, list[dict[str, Any]]]:
    table = Table("sessions", "what", "ours", "template", "ratio")
    rows: list[dict[str, Any]] = []
    for count in sessions:
        ours, peer = (numbers(measure(module, plan, count)) for module, plan in (OURS, PEER))
        for what, value in ours.items():
            ratio = value / peer[what] if peer[what] else None
            rows.append({"sessions": count, "what": what, "ours": value, "peer": peer[what], "ratio": ratio})
            table.add_row(
                str(count), what, f"{value:.4g}", f"{peer[what]:.4g}", "" if ratio is None else f"{ratio:.3f}"
            )
    return table, rows
