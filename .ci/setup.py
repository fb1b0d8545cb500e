"""Makes .venv: checks the machine, installs the pins, proves that the heavy imports work, and stamps the result.

Runs on the system's Python before anything is installed: standard library only, in a syntax that old Pythons parse,
so that they can be refused. It does not know what the packages are for: pins and reasons are in requirements.lock
and pyproject.toml.
"""

import errno
import fcntl
import hashlib
import importlib.util
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import urllib.request
from pathlib import Path

TORCH = "torch==2.13.0"
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
NEEDED_BYTES = 8 * 10**9
NEEDED_TEMPORARY_BYTES = 3 * 10**9
OLDEST_PYTHON, FIRST_UNSUPPORTED_PYTHON = (3, 11), (3, 15)
WRONG_PYTHON = (
    "{} is Python {}.{}, but vLLM needs 3.11 to 3.14: name another one, for example `make setup PYTHON=python3.12`."
)
if sys.version_info < OLDEST_PYTHON:  # before the annotations below, which the oldest ones cannot evaluate
    raise SystemExit(WRONG_PYTHON.format(sys.executable, *sys.version_info[:2]))

HEARTBEAT_S = 15.0
PLUGIN_GROUPS = ("vllm.general_plugins", "vllm.endpoint_plugins")

IMPORT_CHECK = f"""
import importlib.metadata as metadata
import gradio, torch, trl, vllm
for group in {PLUGIN_GROUPS!r}:
    if "delta_sync" not in metadata.entry_points(group=group).names:
        raise SystemExit(f"the entry point delta_sync is missing from {{group}}")
print(*(f"{{m.__name__}} {{m.__version__}}" for m in (torch, vllm, trl, gradio)), sep=", ")
"""


class Refusal(Exception):
    """The machine cannot take the set-up; the message is the one sentence to print."""


def check_platform(system: str, machine: str) -> None:
    if system != "Linux" or machine not in ("x86_64", "aarch64"):
        raise Refusal(
            f"This is {system} on {machine}, but vLLM's CPU build exists for Linux on x86_64 and aarch64 only: "
            "use such a machine or a container."
        )


def check_python(version: tuple[int, int], executable: str) -> None:
    if not OLDEST_PYTHON <= version < FIRST_UNSUPPORTED_PYTHON:
        raise Refusal(WRONG_PYTHON.format(executable, *version))


def check_venv_module() -> None:
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        raise Refusal(
            "This Python cannot make virtual environments: install the missing module "
            "(on Debian and Ubuntu: apt-get install python3-venv) and run make again."
        )


def check_disk(free: int, needed: int, folder: Path) -> None:
    """free: bytes that can be written under folder."""
    if free < needed:
        raise Refusal(
            f"{folder} has {free / 1e9:.1f} GB of free disk, but set-up needs {needed / 1e9:.0f} GB there: "
            "free some and run make again."
        )


def check_disks(root: Path) -> None:
    for folder, needed in ((root, NEEDED_BYTES), (Path(tempfile.gettempdir()), NEEDED_TEMPORARY_BYTES)):
        check_disk(shutil.disk_usage(folder).free, needed, folder)


def digest(*parts: bytes) -> str:
    """Length-prefixed, so that moving a byte from one part to the next changes it."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(len(part).to_bytes(8, "little") + part)
    return whole.hexdigest()


def wanted_stamp(root: Path, python: str) -> tuple[str, str]:
    """What a finished .venv is stamped with: a digest of what fills it, and one of the project's own installation.

    python: version and path of the interpreter. The checkout's path counts, since scripts in .venv hold it.
    """
    lock, project = (root / "requirements.lock").read_bytes(), (root / "pyproject.toml").read_bytes()
    return digest(lock, TORCH.encode(), python.encode(), str(root).encode()), digest(project)


def read_stamp(venv: Path) -> tuple[str, str]:
    """Two empty strings when the set-up never ended."""
    stamp = venv / "setup.stamp"
    lines = stamp.read_text().split() if stamp.is_file() else []
    return (lines[0], lines[1]) if len(lines) == 2 else ("", "")


def write_stamp(venv: Path, stamp: tuple[str, str]) -> None:
    partial = venv / "setup.stamp.partial"
    partial.write_text("\n".join(stamp) + "\n")
    partial.replace(venv / "setup.stamp")


def cpu_index_options() -> list[str]:
    """pip would wait for an unreachable index once per package, so it is asked for here once."""
    try:
        urllib.request.urlopen(TORCH_CPU_INDEX + "/torch/", timeout=8).close()
    except OSError as error:
        print(
            f"warning: {TORCH_CPU_INDEX} cannot be reached ({error}); torch comes from the default index, "
            "where it may be the larger CUDA build.",
            flush=True,
        )
        return []
    return ["--extra-index-url", TORCH_CPU_INDEX]


class Phases:
    """Runs commands one after another; says which and for how long, and shows a command's own words only if it fails.

    lock: an open file whose lock the commands inherit, so that one that outlives this process still keeps others out.
    """

    def __init__(self, log: Path, lock: int) -> None:
        self._log, self._lock, self._start = log, lock, time.monotonic()

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._start:4.0f} s] {text}", flush=True)

    def run(self, title: str, command: list[str]) -> str:
        """Returns the output's last line."""
        self.say(title)
        with self._log.open("w") as out:
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, pass_fds=(self._lock,))
        try:
            while self._is_running(process):
                self.say("  " + textwrap.shorten(self._last_line(), 90, placeholder=" ..."))
        except KeyboardInterrupt:
            process.terminate()
            process.wait()
            raise
        if process.returncode != 0:
            raise Refusal(self._why_it_failed(title, process.returncode))
        return self._last_line()

    def _is_running(self, process: subprocess.Popen[bytes]) -> bool:
        try:
            process.wait(HEARTBEAT_S)
        except subprocess.TimeoutExpired:
            return True
        return False

    def _last_line(self) -> str:
        lines = self._log.read_text(errors="replace").split("\n")
        telling = (line.strip() for line in reversed(lines) if line.strip() and not line.startswith("WARNING"))
        return next(telling, "...")

    def _why_it_failed(self, title: str, code: int) -> str:
        text = self._log.read_text(errors="replace")
        telling = [line[:200] for line in text.splitlines() if not line.startswith("WARNING")]
        print("\n".join(telling[-20:]), file=sys.stderr, flush=True)
        if "No space left on device" in text:
            return f"The disk ran full: set-up needs {NEEDED_BYTES / 1e9:.0f} GB; free some and run make again."
        return f"Set-up stopped at '{title}' (exit code {code}), for the reason above; run make again to start over."


def base_python() -> str:
    """Never a virtual environment's own: the one running this may be the .venv that is about to be removed."""
    return str(Path(sys.base_prefix, "bin", "python{}.{}".format(*sys.version_info)))


def isolated(venv: Path, *arguments: str) -> list[str]:
    """Python of venv, blind to PYTHONPATH: pip would take what it sees there for installed."""
    return [str(venv / "bin" / "python"), "-I", *arguments]


def pip_install(venv: Path, *arguments: str) -> list[str]:
    # Compiling every file is most of pip's work here, and Python compiles those that it imports anyway.
    quiet = ("--disable-pip-version-check", "--no-input", "--progress-bar", "off", "--no-compile")
    return isolated(venv, "-m", "pip", "install", *quiet, "--timeout", "30", "--retries", "3", *arguments)


def fill(root: Path, venv: Path, phases: Phases) -> None:
    """A .venv that no stamp vouches for may hold half a package: it is made anew."""
    check_platform(platform.system(), platform.machine())
    check_python(sys.version_info[:2], sys.executable)
    check_venv_module()
    if venv.exists():
        phases.say("removing the unfinished or outdated .venv")
        shutil.rmtree(venv)
    check_disks(root)
    phases.run("making .venv", [base_python(), "-m", "venv", str(venv)])
    lock = str(root / "requirements.lock")
    # torch first and with dependencies: where only its CUDA build is offered, it does not import without them.
    torch = pip_install(venv, *cpu_index_options(), "--constraint", lock, TORCH)
    phases.run(f"installing {TORCH}", torch)
    phases.run("installing requirements.lock (minutes)", pip_install(venv, "--no-deps", "--requirement", lock))


def set_up(root: Path, phases: Phases) -> None:
    venv = root / ".venv"
    wanted, found = wanted_stamp(root, f"{sys.version} {base_python()}"), read_stamp(venv)
    if found == wanted:
        return
    (venv / "setup.stamp").unlink(missing_ok=True)
    if found[0] != wanted[0]:
        fill(root, venv, phases)
    # setuptools is one of the pins, hence no build isolation and no second download of it.
    project = pip_install(venv, "--no-deps", "--no-build-isolation", "--editable", str(root))
    phases.run("installing this project", project)
    versions = phases.run("importing torch, vllm, trl and gradio", isolated(venv, "-c", IMPORT_CHECK))
    write_stamp(venv, wanted)
    phases.say(f"ready: {versions}")


def set_up_alone(root: Path) -> None:
    """One set-up per checkout at a time."""
    with (root / "requirements.lock").open() as file, tempfile.TemporaryDirectory(prefix="setup-") as logs:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting for another set-up in this folder to end", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        set_up(root, Phases(Path(logs, "log"), file.fileno()))


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        set_up_alone(Path(__file__).resolve().parent.parent)
    except Refusal as refusal:
        print(refusal, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Set-up was interrupted; run make again to start over.", file=sys.stderr)
        return 130
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        print(f"{error}: free some disk and run make again.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
