"""What a Space answers that is not set up yet, and how that ends."""

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from space_vllm.settings import Place, SettingError, Settings
from space_vllm.setup import SetupPage, wait_until_set_up
from tests.conftest import StartProcess
from tests.space_vllm.fakes import KEY, make_settings
from tests.space_vllm.processes import wait_until

SPACE = "somebody/vllm"
NO_KEY = SettingError("VLLM_API_KEY is not set: set it to a key.")
NO_BUCKET = SettingError("BUCKET: there is <b>no</b> bucket.", Place.BUCKET, Place.TOKENS)


def settings_at(folder: Path, port: int) -> Settings:
    return replace(make_settings(folder), bucket="somebody/weights", host="127.0.0.1", port=port)


class Space:
    """Looks three times: twice something is missing, and each time the page is asked meanwhile."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._found = [[NO_KEY, NO_BUCKET], [NO_BUCKET], []]
        self.answers: list[dict[str, httpx.Response]] = []

    def look(self) -> list[SettingError]:
        if len(self._found) < 3:
            wait_until(self._listens)
            asked = {path: httpx.get(self._url + path, trust_env=False) for path in ("/", "/health", "/v1/models")}
            post = httpx.post(self._url + "/weights/update", json={}, trust_env=False)
            self.answers.append({**asked, "/weights/update": post})
        return self._found.pop(0)

    def _listens(self) -> bool:
        try:
            return httpx.get(self._url, trust_env=False).status_code == 200
        except httpx.TransportError:
            return False


@pytest.fixture
def waited(tmp_path: Path, free_port: Callable[[], int], capfd: pytest.CaptureFixture[str]) -> tuple[Space, str]:
    """A Space that is set up by now, and what it has printed."""
    port = free_port()
    space = Space(f"http://127.0.0.1:{port}")
    assert wait_until_set_up(settings_at(tmp_path, port), SPACE, space.look, period_s=0.1)
    return space, capfd.readouterr().err


def test_the_page_lists_each_problem_and_where_to_put_it_right(waited: tuple[Space, str]) -> None:
    page = waited[0].answers[0]["/"].text
    assert str(NO_KEY) in page
    assert "BUCKET: there is &lt;b&gt;no&lt;/b&gt; bucket." in page
    for address in (f"spaces/{SPACE}/settings", "buckets/somebody/weights", "settings/tokens"):
        assert f'href="https://huggingface.co/{address}"' in page


def test_all_else_is_closed_with_the_reasons(waited: tuple[Space, str]) -> None:
    for path in ("/health", "/v1/models", "/weights/update"):
        answer = waited[0].answers[0][path]
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "30")
        assert answer.json()["error"].startswith("this Space is not set up yet: VLLM_API_KEY is not set")


def test_the_page_follows_what_is_found_and_goes_when_nothing_is_missing(waited: tuple[Space, str]) -> None:
    space, _ = waited
    assert str(NO_KEY) not in space.answers[1]["/"].text
    assert "there is" in space.answers[1]["/"].text
    assert not space._listens()


def test_the_log_tells_what_has_changed(waited: tuple[Space, str]) -> None:
    begun = "this Space is not set up yet: "
    expected = [begun + str(NO_KEY), begun + str(NO_BUCKET), begun + str(NO_BUCKET), "this Space is set up now"]
    assert waited[1].splitlines() == expected


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_the_middle_of_a_look(tmp_path: Path, number: signal.Signals) -> None:
    before = signal.getsignal(number)

    def look() -> list[SettingError]:
        signal.raise_signal(number)
        pytest.fail("the look went on")

    assert not wait_until_set_up(make_settings(tmp_path), SPACE, look)
    assert signal.getsignal(number) == before


def test_a_space_that_is_set_up_has_no_page(tmp_path: Path) -> None:
    nowhere = replace(make_settings(tmp_path), host="no.such.host.invalid")
    assert wait_until_set_up(nowhere, SPACE, lambda: [])


def test_no_secret_is_on_the_page(tmp_path: Path) -> None:
    settings = replace(settings_at(tmp_path, 1), hf_token="hf_secret")
    page = SetupPage(settings, SPACE)
    page.note([SettingError("everything", *Place)])
    assert {link.url.rpartition("/")[2] for link in page.links(SettingError("", *Place))} >= {"settings", "tokens"}
    assert not [link for link in page.links(SettingError("", *Place)) if KEY in link.url or "hf_" in link.url]


@pytest.mark.slow
def test_a_space_without_settings_stays_up_and_ends_when_it_is_told(
    process: StartProcess, free_port: Callable[[], int], tmp_path: Path
) -> None:
    port = free_port()
    space = {"SPACE_ID": SPACE, "SPACE_AUTHOR_NAME": "somebody", "HOST": "127.0.0.1", "PORT": str(port)}
    unset = dict.fromkeys(("BUCKET", "MODEL", "VLLM_API_KEY", "HF_TOKEN", "RUN_ID"), "")
    offline = {"HF_HUB_OFFLINE": "1"}
    url = f"http://127.0.0.1:{port}/"
    running = process(
        [sys.executable, "-m", "space_vllm.serve"], env={**os.environ, **unset, **offline, **space}, url=url
    )
    page = httpx.get(url, trust_env=False).text
    assert all(f"{name} is not set" in page for name in ("MODEL", "VLLM_API_KEY", "HF_TOKEN"))
    running.process.send_signal(signal.SIGTERM)
    assert running.wait(30) == 0, running.tail()
