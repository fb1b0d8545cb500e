"""`make setup`: what it refuses and how, and when it has nothing to do. What it installs is seen by running it."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent


def load_setup() -> ModuleType:
    spec = importlib.util.spec_from_file_location("project_setup", ROOT / ".ci" / "setup.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


setup = load_setup()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "requirements.lock").write_text("a==1\n")
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    (tmp_path / ".venv").mkdir()
    return tmp_path


@pytest.fixture
def phases(tmp_path: Path) -> Iterator[Any]:
    with (tmp_path / "lock").open("w") as lock:
        yield setup.Phases(tmp_path / "log", lock.fileno())


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_linux_on_both_supported_machines_is_accepted(machine: str) -> None:
    setup.check_platform("Linux", machine)


@pytest.mark.parametrize(("system", "machine"), [("Darwin", "arm64"), ("Windows", "AMD64"), ("Linux", "riscv64")])
def test_another_system_is_refused_by_name(system: str, machine: str) -> None:
    with pytest.raises(setup.Refusal, match=f"This is {system} on {machine}, "):
        setup.check_platform(system, machine)


@pytest.mark.parametrize("version", [(3, 11), (3, 14)])
def test_pythons_from_3_11_to_3_14_are_accepted(version: tuple[int, int]) -> None:
    setup.check_python(version, "python3")


@pytest.mark.parametrize("version", [(2, 7), (3, 10), (3, 15)])
def test_another_python_is_refused_with_a_way_to_name_one(version: tuple[int, int]) -> None:
    with pytest.raises(setup.Refusal, match=rf"Python {version[0]}\.{version[1]}, .*PYTHON=python3\.12"):
        setup.check_python(version, "python3")


def test_a_full_disk_is_refused_with_both_sizes(tmp_path: Path) -> None:
    with pytest.raises(setup.Refusal, match=r"has 7\.9 GB of free disk, but set-up needs 8 GB there"):
        setup.check_disk(7_900_000_000, 8_000_000_000, tmp_path)
    setup.check_disk(8_000_000_000, 8_000_000_000, tmp_path)


def test_a_refusal_is_one_sentence_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(_root: Path) -> None:
        raise setup.Refusal("No.")

    monkeypatch.setattr(setup, "set_up_alone", refuse)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert setup.main() == 1
    assert capsys.readouterr() == ("", "No.\n")


def test_a_stamp_is_read_back_as_written(checkout: Path) -> None:
    stamp = setup.wanted_stamp(checkout, "3.11")
    setup.write_stamp(checkout / ".venv", stamp)
    assert setup.read_stamp(checkout / ".venv") == stamp


def test_a_missing_or_torn_stamp_matches_nothing(checkout: Path) -> None:
    assert setup.read_stamp(checkout / ".venv") == ("", "")
    (checkout / ".venv" / "setup.stamp").write_text("abc")
    assert setup.read_stamp(checkout / ".venv") == ("", "")


def test_another_pin_or_python_or_folder_asks_for_a_new_environment(checkout: Path, tmp_path: Path) -> None:
    before = setup.wanted_stamp(checkout, "3.11")
    assert setup.wanted_stamp(checkout, "3.12")[0] != before[0]
    (checkout / "requirements.lock").write_text("a==2\n")
    after = setup.wanted_stamp(checkout, "3.11")
    assert after[0] != before[0] and after[1] == before[1]
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in ("requirements.lock", "pyproject.toml"):
        (moved / name).write_bytes((checkout / name).read_bytes())
    assert setup.wanted_stamp(moved, "3.11")[0] != after[0]


def test_another_pyproject_asks_only_for_the_project_to_be_installed_again(checkout: Path) -> None:
    before = setup.wanted_stamp(checkout, "3.11")
    (checkout / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    after = setup.wanted_stamp(checkout, "3.11")
    assert after[0] == before[0] and after[1] != before[1]


def test_nothing_runs_when_the_stamp_matches(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    python = f"{sys.version} {setup.base_python()}"
    setup.write_stamp(checkout / ".venv", setup.wanted_stamp(checkout, python))
    setup.set_up_alone(checkout)
    assert capsys.readouterr().out == ""


def test_a_phase_returns_the_last_line_and_keeps_the_rest_to_itself(
    phases: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert phases.run("counting", [sys.executable, "-c", "print('one'); print('two')"]) == "two"
    assert capsys.readouterr().out.endswith("s] counting\n")


def test_a_failed_phase_shows_its_output_and_names_itself(
    phases: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(setup.Refusal, match=r"stopped at 'failing' \(exit code 3\)"):
        phases.run("failing", [sys.executable, "-c", "print('ERROR: no such pin'); raise SystemExit(3)"])
    assert "ERROR: no such pin" in capsys.readouterr().err


def test_a_disk_that_fills_up_on_the_way_is_named_as_the_reason(phases: Any) -> None:
    message = os.strerror(28)
    with pytest.raises(setup.Refusal, match="The disk ran full"):
        phases.run("filling", [sys.executable, "-c", f"raise SystemExit('OSError: [Errno 28] {message}')"])


def test_the_interpreter_that_makes_the_environment_is_no_virtual_one() -> None:
    assert Path(setup.base_python()).is_relative_to(sys.base_prefix)
    assert Path(setup.base_python()).exists()


def test_every_requirement_is_one_exact_pin() -> None:
    lines = [line.split(" ;")[0] for line in (ROOT / "requirements.lock").read_text().splitlines()]
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(pin.count("==") == 1 for pin in pins)
    names = [pin.split("==")[0].lower().replace("_", "-").replace(".", "-") for pin in pins]
    assert len(names) == len(set(names))
    assert not {"torch", "torchvision", "torchaudio", "torchcodec", "triton"} & set(names)
