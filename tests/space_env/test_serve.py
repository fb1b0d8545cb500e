"""The process: its port, its one line, and a start that fails with one sentence."""

import re
import sys
from collections.abc import Callable

import pytest

from space_env.serve import bind, port_from
from tests.conftest import ROOT, StartProcess
from tests.space_env.server import get, status

SERVE = [sys.executable, "-m", "space_env.serve"]
STARTING_S = 90.0


@pytest.mark.parametrize("text", ["", "http", "0", "65536", "-1", "7860 ", "7_860"])
def test_a_port_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="PORT is .*; set it to a number from 1 to 65535"):
        port_from({"PORT": text})


def test_the_port_is_that_of_spaces_unless_set() -> None:
    assert (port_from({}), port_from({"PORT": "80"})) == (7860, 80)


def test_a_port_in_use_is_named_in_one_sentence() -> None:
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen on port {port} of 127.0.0.1: it is already in use"):
            bind("127.0.0.1", port)


@pytest.mark.slow
def test_the_command_serves_with_its_key_and_never_prints_it(
    process: StartProcess, free_port: Callable[[], int]
) -> None:
    port = free_port()
    env = {"PORT": str(port), "HOST": "127.0.0.1", "ENV_API_KEY": "sesame-opens"}
    base = f"http://127.0.0.1:{port}"
    server = process(SERVE, env=env, url=f"{base}/health", deadline_s=STARTING_S)
    assert get(f"{base}/status")[0] == 401
    assert status(base, "sesame-opens")["capacity"] == 256
    server.stop()
    assert server.output() == f"space_env: listening on 127.0.0.1:{port}, at most 256 sessions\n"


@pytest.mark.slow
def test_the_command_ends_with_one_sentence_when_its_port_is_taken(process: StartProcess) -> None:
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        command = process(SERVE, env={"PORT": str(port), "HOST": "127.0.0.1"})
        assert command.wait(STARTING_S) == 1
    assert command.output().splitlines() == [
        f"space_env: cannot listen on port {port} of 127.0.0.1: it is already in use; "
        "stop the program that uses it, or set PORT and HOST"
    ]


PRINT_KEYS = """
import pkgutil, sys
print([layer.kwargs for layer in pkgutil.resolve_name(sys.argv[1])().user_middleware])
"""


@pytest.mark.slow
def test_an_asgi_server_of_ones_own_gets_the_app_with_its_key(process: StartProcess) -> None:
    (named,) = re.findall(r"^app: ([\w.]+:\w+)$", (ROOT / "space_env" / "openenv.yaml").read_text(), re.MULTILINE)
    command = process([sys.executable, "-c", PRINT_KEYS, named], env={"ENV_API_KEY": "sesame"})
    assert command.wait(STARTING_S) == 0
    assert "'key': 'sesame'" in command.output()
