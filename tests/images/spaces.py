"""An image run as Spaces run it: user 1000, nothing of this machine's environment, what the image says and no more.

Stricter in one thing: the file system is read-only but for the directories that belong to that user. Less strict in
another: it is on this machine's network, for it has to reach a stand-in Hub on loopback.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.conftest import RunningProcess
from tests.images.buildah import Settings, Store

USER = 1000

# In a mount namespace of its own, which goes with its last process. Everything is replaced in turn: one process.
_MOUNT = """
set -e
mount --bind "$ROOT" "$ROOT"
mount -t proc proc "$ROOT/proc"
mount --rbind /sys "$ROOT/sys"
mount --rbind /dev "$ROOT/dev"
mount -t tmpfs -o mode=1777 tmpfs "$ROOT/tmp"
for own in $OWN; do mount --bind "$ROOT$own" "$ROOT$own"; done
mount -o remount,bind,ro "$ROOT"
exec chroot --userspec=+"$USER_ID":+"$USER_ID" --groups= "$ROOT" /usr/bin/env -i -C "$FOLDER" "$@"
"""


@contextmanager
def running(
    store: Store,
    image: str,
    port: int,
    environment: Mapping[str, str],
    log: Path,
    files: Mapping[str, Path] | None = None,
) -> Iterator[RunningProcess]:
    """The image's own command, with `environment` as secrets and variables, at `port` of 127.0.0.1.

    `files` are folders of this machine that are copied to places in the image beforehand.
    """
    settings = store.settings(image)
    given = {**settings.environment, "HOST": "127.0.0.1", **environment, "PORT": str(port)}
    with store.container(image) as (_, root):
        for place, folder in (files or {}).items():
            shutil.copytree(folder, f"{root}{place}")
        space = RunningProcess(_start(root, settings, [f"{key}={value}" for key, value in given.items()], log), log)
        try:
            yield space
        finally:
            space.stop()


def _start(root: Path, settings: Settings, environment: list[str], log: Path) -> subprocess.Popen[bytes]:
    places = {
        "ROOT": str(root),
        "OWN": " ".join(own_directories(root)),
        "USER_ID": str(USER),
        "FOLDER": settings.folder,
        "PATH": os.environ["PATH"],
    }
    arguments = [*environment, *settings.entrypoint, *settings.command]
    with log.open("wb") as out:
        return subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", _MOUNT, "sh", *arguments],
            env=places,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def own_directories(root: Path) -> list[str]:
    """Those of user 1000 that lie in none of theirs, as paths within the image."""
    own: list[str] = []
    for folder, names, _ in os.walk(root):
        for name in list(names):
            path = Path(folder, name)
            if path.is_symlink() or path.stat().st_uid != USER:
                continue
            own.append(f"/{path.relative_to(root)}")
            names.remove(name)
    return own


def inside(space: RunningProcess, *command: str) -> subprocess.CompletedProcess[str]:
    """A command where the Space's process is, as its user."""
    place = ["nsenter", "--target", str(space.process.pid), "--mount", "--root", "--wd"]
    user = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
    return subprocess.run([*place, "--", *user, *command], capture_output=True, text=True, timeout=60)
