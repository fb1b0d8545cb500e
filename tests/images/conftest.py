"""The images, each built once from nothing but its Space's folder."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.images import bases, buildah
from tests.images.wheels import pins_of_vllm, wheels
from trainer_box.deploy.staging import ENV, VLLM, stage

TOOLS = ("buildah", "debootstrap", "unshare", "nsenter", "setpriv", "chroot")


@dataclass(frozen=True)
class Image:
    """`folder` is what it was built from, `base` what it was built on."""

    store: buildah.Store
    name: str
    base: str
    folder: Path


@pytest.fixture(scope="session")
def store() -> Iterator[buildah.Store]:
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing or os.getuid() != 0:
        lacks = f"{', '.join(missing)} cannot be found" if missing else "this is not root"
        pytest.fail(f"{lacks}: images are built as root, with Debian's packages buildah and debootstrap")
    with wheels() as fetched, buildah.store(fetched) as made:
        bases.make_debian(made)
        yield made


@pytest.fixture(scope="session")
def env_image(store: buildah.Store, tmp_path_factory: pytest.TempPathFactory) -> Image:
    folder = tmp_path_factory.mktemp("staged") / "space_env"
    stage(ENV, folder)
    store.build(folder, "localhost/space-env", {"PYTHON_IMAGE": bases.DEBIAN})
    return Image(store, "localhost/space-env", bases.DEBIAN, folder)


@pytest.fixture(scope="session")
def vllm_image(store: buildah.Store, tmp_path_factory: pytest.TempPathFactory) -> Image:
    bases.make_vllm(store, pins_of_vllm())
    folder = tmp_path_factory.mktemp("staged") / "space_vllm"
    stage(VLLM, folder)
    store.build(folder, "localhost/space-vllm", {"VLLM_IMAGE": bases.VLLM})
    return Image(store, "localhost/space-vllm", bases.VLLM, folder)
