"""The environment's image, built from its Space's folder alone, runs as a Space and plays a game."""

from collections.abc import Iterator

import pytest

from space_env.client import WordleClient
from space_env.models import WordleAction
from tests.conftest import RunningProcess
from tests.images import spaces
from tests.images.conftest import Image
from tests.images.scan import Scan
from tests.space_env.server import get, status

pytestmark = [pytest.mark.images, pytest.mark.slow, pytest.mark.timeout(2400)]

KEY = "the-key-of-an-environment-in-an-image"
START_DEADLINE_S = 120.0


@pytest.fixture(scope="module")
def port() -> int:
    return 17_860


@pytest.fixture(scope="module")
def space(env_image: Image, port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningProcess]:
    log = tmp_path_factory.mktemp("env") / "log"
    secrets = {"ENV_API_KEY": KEY, "SPACE_ID": "somebody/async-rl-env", "SPACE_AUTHOR_NAME": "somebody"}
    with spaces.running(env_image.store, env_image.name, port, secrets, log) as running:
        running.wait_for_200(f"http://127.0.0.1:{port}/health", START_DEADLINE_S)
        yield running


@pytest.fixture
def url(space: RunningProcess, port: int) -> str:
    return f"http://127.0.0.1:{port}"


def test_a_game_is_played(url: str) -> None:
    with WordleClient(url, headers={"Authorization": f"Bearer {KEY}"}).sync() as client:
        client.reset(seed=7, words="small")
        assert client.step(WordleAction(word="crane")).observation.text
        assert status(url, KEY)["sessions"] == 1
    assert get(f"{url}/status")[0] == 401
    assert status(url, KEY)["steps"] == 1


def test_it_runs_as_a_user_with_a_name_who_may_write_at_home_and_nowhere_else(space: RunningProcess) -> None:
    assert spaces.inside(space, "id", "--user", "--name").stdout == "user\n"
    assert spaces.inside(space, "touch", "/home/user/file").returncode == 0
    for place in ("/home/user/app/file", "/usr/local/file", "/etc/file", "/file"):
        refused = spaces.inside(space, "touch", place)
        assert refused.returncode != 0, place


def test_it_says_what_spaces_need_to_know(env_image: Image) -> None:
    settings = env_image.store.settings(env_image.name)
    assert (settings.user, settings.ports, settings.environment["PORT"]) == ("1000", ["7860/tcp"], "7860")
    assert (settings.entrypoint, settings.command) == ([], ["python", "-m", "space_env.serve"])


def test_there_is_no_torch_in_it(space: RunningProcess) -> None:
    found = spaces.inside(space, "python", "-c", "import gradio, importlib.util as u; print(u.find_spec('torch'))")
    assert found.stdout == "None\n", found.stderr


def test_no_secret_is_in_the_folder_the_image_or_the_log(env_image: Image, space: RunningProcess) -> None:
    scan = Scan([KEY])
    assert scan.folder(env_image.folder) == []
    with env_image.store.saved(env_image.name) as saved:
        assert scan.saved_image(saved, env_image.store.layers(env_image.base)) == []
    assert KEY not in space.output()
