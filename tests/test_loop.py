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
from playwright.sync_api import Page, sync_playwright
from rich.console import Console

from shared import layout
from shared.bucket import open_bucket
from shared.errors import SyncError
from shared.monitor import words
from shared.reader import RunReader, newest_run
from shared.types import End
from tests.hub import stand_in
from tests.shared.hub_calls import asked_here
from trainer_box.demo import DemoArguments, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
DEADLINE_S = 400
ROOT = Path(__file__).parents[1]
SCREENSHOTS = ROOT / "runs" / "screenshots"


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


@contextmanager
def browsed(port: int) -> Iterator[Page]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = chromium.new_page(viewport={"width": 1280, "height": 900})
        page.goto(f"http://127.0.0.1:{port}/monitor/")
        yield page
        chromium.close()


def newest_on_the_page(page: Page) -> dict[str, str]:
    """What the monitor shows of the newest version: read at one moment, in the page."""
    found: dict[str, str] = page.evaluate(
        """() => ({
            version: [...document.querySelectorAll(".tile")].find(t => t.innerText.includes("Policy version"))
                ?.querySelector(".value")?.innerText ?? "",
            reward: document.querySelector("#head-reward strong")?.innerText ?? "",
            payload: document.querySelector("#versions tbody tr td:nth-child(3)")?.innerText ?? "",
        })"""
    )
    return found


def watched(page: Page, process: subprocess.Popen[str], is_over: Callable[[], bool]) -> dict[str, dict[str, str]]:
    """By version, what the page showed of three of them while the demo ran; fewer when it is over before."""
    seen = dict[str, dict[str, str]]()

    def has_seen_three() -> bool:
        shown = newest_on_the_page(page)
        page.wait_for_timeout(300)  # its places change one after the other
        if shown != newest_on_the_page(page):
            return False
        if shown["version"] not in ("", "0") and shown["reward"] not in ("", "-"):
            seen[shown["version"]] = shown
        return len(seen) >= 3 or is_over()

    wait_for(has_seen_three, process)
    return seen


def in_the_bucket(run: RunReader, version: int) -> dict[str, str]:
    manifest = run.manifest(version)
    reward = format(manifest.trainer["reward"], "+.2f")
    return {"version": str(version), "reward": reward, "payload": words.size(manifest.nbytes)}


def check_report(folder: Path, steps: int, output: str) -> None:
    report = json.loads((folder / "report.json").read_text())
    assert report["verified"] is True
    assert report["learned"] is None  # these are too few steps to tell
    assert [step["version"] for step in report["steps"]] == list(range(1, steps + 1))
    assert report["agreement"]["importance_ratio"] == pytest.approx(1, abs=0.02)
    assert report["agreement"]["max_logprob_difference"] < 0.05
    assert all(step["importance_ratio"] == pytest.approx(1, abs=0.02) for step in report["steps"])
    assert 0 < report["mean_sparsity"] < report["next_step_sparsity"]["rl_size"]["sparsity"] <= 1
    synced = re.findall(r"^sync v(\d+) .* verified$", output, re.MULTILINE)
    assert (synced[0], synced[-1]) == ("0", str(steps))  # a point that finds another sync under way takes no version
    assert report["versions"] == len(synced), "one line per version"
    assert (folder / "report.png").read_bytes().startswith(b"\x89PNG")


def check_secrets(folder: Path) -> None:
    for log in [*folder.glob("*.log"), folder / "report.json"]:
        told = log.read_text(errors="replace")
        assert not re.search("hf_[0-9a-f]{32}|api_key", told, re.IGNORECASE), f"a secret is in {log}"


@pytest.mark.vllm
def test_a_short_demo_over_the_stand_in_serves_what_it_trains_and_the_page_shows_what_is_in_the_bucket(
    tmp_path: Path, free_port: Callable[[], int]
) -> None:
    port, steps = free_port(), 8
    options = (f"--steps={steps}", "--temperature=0.7", f"--port={port}", "--bucket=stand-in")
    with demo(tmp_path, *options) as process:
        wait_for(lambda: steps_in(tmp_path) >= 1, process)
        with browsed(port) as page:
            seen = watched(page, process, lambda: steps_in(tmp_path) >= steps)
            page.get_by_text("replica verified").or_(page.get_by_text("versions behind")).first.wait_for(
                timeout=60_000
            )
            SCREENSHOTS.mkdir(parents=True, exist_ok=True)
            page.screenshot(path=SCREENSHOTS / "monitor-live.png")
        output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, output
    (folder,) = tmp_path.glob("runs/*")
    check_report(folder, steps, output)
    check_secrets(folder)
    assert not (folder / "bucket").exists()
    with stand_in(folder / "hub") as hub, asked_here(hub, tmp_path / "xet"):
        bucket = open_bucket(f"demo/{folder.name}", "any token")
        run = RunReader(bucket, newest_run(bucket).run_id)
        assert len(seen) >= 2, "versions appeared without a reload"
        assert seen == {version: in_the_bucket(run, int(version)) for version in seen}
        (end,) = bucket.files(layout.ends(run.run_id))
        assert End.from_json(bucket.read(end), end).reason == ""


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
