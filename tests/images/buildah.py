"""Images on this machine, by Debian's buildah, without a daemon: root, chroot isolation, and plain folders as storage.

Knows how images are built, looked into and removed; what is in them is not its business. The storage copies the whole
file system for every layer, so images are made with few steps, and go with their store.
"""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

BUILD_DEADLINE_S = 1800.0


class BuildError(AssertionError):
    """A command of buildah that failed, with its last lines."""


@dataclass(frozen=True)
class Settings:
    """What an image says of the process that runs in it."""

    user: str
    command: list[str]
    entrypoint: list[str]
    environment: dict[str, str]
    folder: str
    ports: list[str]

    @classmethod
    def read(cls, config: Mapping[str, object]) -> Self:
        def listed(name: str) -> list[str]:
            found = config.get(name) or []
            assert isinstance(found, list | dict)
            return [str(item) for item in found]

        environment = dict(line.split("=", 1) for line in listed("Env"))
        user, folder = str(config.get("User", "")), str(config.get("WorkingDir", "/"))
        return cls(user, listed("Cmd"), listed("Entrypoint"), environment, folder, listed("ExposedPorts"))


class Store:
    """Where images lie. `wheels` is what their pip finds in place of an index."""

    def __init__(self, folder: Path, wheels: Path) -> None:
        self._folder = folder
        self._wheels = wheels

    def build(self, context: Path, name: str, arguments: Mapping[str, str]) -> None:
        """What is named Dockerfile in the context, from nothing but the context and the base in `arguments`."""
        given = [f"--build-arg={key}={value}" for key, value in arguments.items()]
        place = ["--file", str(context / "Dockerfile"), str(context)]
        self.run("build", "--pull-never", "--tag", name, "--volume", f"{self._wheels}:/wheels:ro", *given, *place)

    @contextmanager
    def container(self, image: str) -> Iterator[tuple[str, Path]]:
        """A container of the image, by name, and where its file system is."""
        name = self.run("from", "--pull-never", "--volume", f"{self._wheels}:/wheels:ro", image).strip()
        try:
            yield name, Path(self.run("mount", name).strip())
        finally:
            self.run("rm", name)

    def settings(self, image: str) -> Settings:
        inspected = json.loads(self.run("inspect", "--type", "image", image))
        return Settings.read(inspected["OCIv1"]["config"])

    @contextmanager
    def saved(self, image: str) -> Iterator[Path]:
        """The image as files: its configuration, its history, and one archive for each layer, named by its digest."""
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            self.run("push", "--disable-compression", image, f"dir:{folder}")
            yield Path(folder)

    def layers(self, image: str) -> list[str]:
        """Their digests, the base's first."""
        inspected = json.loads(self.run("inspect", "--type", "image", image))
        return [str(digest).removeprefix("sha256:") for digest in inspected["OCIv1"]["rootfs"]["diff_ids"]]

    def run(self, *arguments: str) -> str:
        """What a command of buildah prints. Raises BuildError."""
        places = ["--root", str(self._folder / "root"), "--runroot", str(self._folder / "run")]
        environment = {
            **os.environ,
            "BUILDAH_ISOLATION": "chroot",
            "STORAGE_DRIVER": "vfs",
            "TMPDIR": str(self._folder),
        }
        ran = subprocess.run(
            ["buildah", *places, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=BUILD_DEADLINE_S,
        )
        if ran.returncode != 0:
            last = "\n".join((ran.stdout + ran.stderr).splitlines()[-30:])
            raise BuildError(f"buildah {' '.join(arguments[:3])} ... ended with exit code {ran.returncode}:\n{last}")
        return ran.stdout


@contextmanager
def store(wheels: Path) -> Iterator[Store]:
    """An empty store, in TMPDIR; nothing of it is left."""
    folder = Path(tempfile.mkdtemp(prefix="images-"))
    try:
        yield Store(folder, wheels)
    finally:
        shutil.rmtree(folder)
