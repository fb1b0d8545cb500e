"""The whole loop as people run it: real environment, real vLLM, real trainer, and both kinds of bucket."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from shared.bucket import open_bucket
from shared.errors import SyncError
from shared.reader import RunReader, newest_run
from trainer_box.demo import DemoArguments, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
DEADLINE_S = 400
ROOT = Path(__file__).parents[1]


@contextmanager
def demo(folder: Path, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """`make demo` in a folder of its own; one that is not done by the end is interrupted, and stops its units."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "trainer_box.local", *arguments],
        cwd=folder,
        env={**inherited, "PYTHONPATH": str(ROOT), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)


def descendants(process: subprocess.Popen[str]) -> list[psutil.Process]:
    children: list[psutil.Process] = psutil.Process(process.pid).children(recursive=True)
    return children


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < end, "the demo did not get there in time"
        time.sleep(0.2)


def steps_in(folder: Path) -> int:
    return sum(len(path.read_text().splitlines()) for path in folder.glob("runs/*/steps.jsonl"))


@pytest.mark.vllm
def test_a_short_demo_over_the_stand_in_serves_what_it_trains(tmp_path: Path, free_port: Callable[[], int]) -> None:
    options = ("--steps=4", "--temperature=0.7", f"--port={free_port()}", "--bucket=stand-in")
    with demo(tmp_path, *options) as process:
        output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, output
    (path,) = tmp_path.glob("runs/*/report.json")
    report = json.loads(path.read_text())
    assert report["verified"] is True
    assert report["learned"] is None  # four steps are too few to tell
    assert [step["version"] for step in report["steps"]] == [1, 2, 3, 4]
    assert report["agreement"]["importance_ratio"] == pytest.approx(1, abs=0.02)
    assert report["agreement"]["max_logprob_difference"] < 0.05
    assert all(step["importance_ratio"] == pytest.approx(1, abs=0.02) for step in report["steps"])
    assert 0 < report["mean_sparsity"] < report["next_step_sparsity"]["rl_size"]["sparsity"] <= 1
    synced = re.findall(r"^sync v(\d+) .* verified$", output, re.MULTILINE)
    assert (synced[0], synced[-1]) == ("0", "4")  # a sync point that finds another sync under way takes no version
    assert report["versions"] == len(synced), "one line per version"
    assert not (path.parent / "bucket").exists()
    for log in [*path.parent.glob("*.log"), path]:
        told = log.read_text(errors="replace")
        assert not re.search("hf_[0-9a-f]{32}|api_key", told, re.IGNORECASE), f"a secret is in {log}"


@pytest.mark.vllm
def test_a_demo_whose_vllm_unit_is_killed_tells_its_last_words_and_leaves_nothing_running(tmp_path: Path) -> None:
    with demo(tmp_path, "--steps", "39", "--no-ui") as process:
        wait_for(lambda: steps_in(tmp_path) >= 1, process)
        started = descendants(process)
        (server,) = [child for child in started if "space_vllm.serve" in child.cmdline()]
        server.kill()
        output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1, output
    assert "error: vllm ended with exit code -9" in output
    assert "Traceback" not in output.split("error: vllm ended")[0]
    assert not psutil.wait_procs(started, timeout=10)[1]
    (folder,) = tmp_path.glob("runs/*/bucket")
    bucket = open_bucket(f"local:{folder}")
    manifests = list(RunReader(bucket, newest_run(bucket).run_id).manifests())
    assert [manifest.version for manifest in manifests[:2]] == [0, 1]
    assert all("reward" in manifest.trainer for manifest in manifests[1:])


@pytest.mark.vllm
def test_ctrl_c_ends_the_demo_and_all_it_started(tmp_path: Path) -> None:
    with demo(tmp_path, "--no-ui") as process:
        wait_for(lambda: len(descendants(process)) >= 2, process)
        started = descendants(process)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130, output
    assert "interrupted" in output
    assert "Traceback" not in output
    assert not psutil.wait_procs(started, timeout=10)[1]


def test_a_taken_monitor_port_is_one_sentence(tmp_path: Path, free_port: Callable[[], int]) -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port)), demo(tmp_path, "--port", str(port)) as process:
        output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1
    assert f"port {port} cannot be used" in output
    assert "Traceback" not in output


def test_a_process_that_may_not_ask_the_hub_is_told_so(tmp_path: Path) -> None:
    with demo(tmp_path, "--steps", "3", "--no-ui", "--bucket", "stand-in", HF_HUB_OFFLINE="1") as process:
        output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1
    assert "HF_HUB_OFFLINE forbids that; unset it" in output
    assert not list(tmp_path.glob("runs/*"))


def test_without_a_checkout_there_is_no_stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("trainer_box.demo._CHECKOUT", str(tmp_path))
    with pytest.raises(SyncError, match="--bucket stand-in starts tests.hub, which only a checkout"):
        run(DemoArguments(bucket="stand-in", no_ui=True), Console())
    assert list(tmp_path.iterdir()) == []
