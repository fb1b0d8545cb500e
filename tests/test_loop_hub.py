"""The whole loop over a stand-in for the Hub: every unit uses the bucket through the Hub's real clients."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from shared.errors import SyncError
from trainer_box.demo import DemoArguments, run

pytestmark = [pytest.mark.slow, pytest.mark.vllm, pytest.mark.timeout(600)]
DEADLINE_S = 500
ROOT = Path(__file__).parents[1]


def demo(folder: Path, *arguments: str, **environment: str) -> tuple[int, str]:
    """Exit code and output. One that is not done in time is interrupted, so that it stops what it has started."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "trainer_box.local", *arguments],
        cwd=folder,
        env={**inherited, "PYTHONPATH": str(ROOT), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        output, _ = process.communicate(timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
        pytest.fail(f"not done within {DEADLINE_S} s:\n{output}")
    return process.returncode, output


def test_a_short_demo_over_the_stand_in_verifies_every_version(tmp_path: Path) -> None:
    code, output = demo(tmp_path, "--steps", "3", "--no-ui", "--bucket", "stand-in")
    assert code == 0, output
    (path,) = tmp_path.glob("runs/*/report.json")
    report = json.loads(path.read_text())
    assert report["verified"] is True
    assert report["agreement"]["importance_ratio"] == pytest.approx(1, abs=0.02)
    synced = re.findall(r"^sync v(\d+) .* verified$", output, re.MULTILINE)
    assert (synced[0], synced[-1]) == ("0", "3")
    assert report["versions"] == len(synced), "one line per version"
    assert not (path.parent / "bucket").exists()
    for log in [*path.parent.glob("*.log"), path]:
        assert not re.search("hf_[0-9a-f]{32}", log.read_text(errors="replace")), f"the token is in {log}"


def test_a_process_that_may_not_ask_the_hub_is_told_so(tmp_path: Path) -> None:
    code, output = demo(tmp_path, "--steps", "3", "--no-ui", "--bucket", "stand-in", HF_HUB_OFFLINE="1")
    assert code == 1
    assert "HF_HUB_OFFLINE forbids that; unset it" in output
    assert not list(tmp_path.glob("runs/*"))


def test_without_a_checkout_there_is_no_stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("trainer_box.demo._CHECKOUT", str(tmp_path))
    with pytest.raises(SyncError, match="--bucket stand-in starts tests.hub, which only a checkout"):
        run(DemoArguments(bucket="stand-in", no_ui=True), Console())
    assert list(tmp_path.iterdir()) == []
