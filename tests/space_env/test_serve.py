"""The process: its port, its one line, and a start that fails with one sentence."""

import re
import resource
import socket
import sys
from collections.abc import Callable

import pytest

from shared.errors import SyncError
from space_env.serve import allow_many_files, bind, key_from, port_from
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


@pytest.mark.parametrize("host", ["::", "0.0.0.0", "localhost"])
def test_every_form_of_host_can_be_connected_to(host: str) -> None:
    with bind(host, 0) as listener:
        port = listener.getsockname()[1]
        reached = ["127.0.0.1", "::1"] if host == "::" else ["127.0.0.1" if host == "0.0.0.0" else host]
        for address in reached:
            socket.create_connection((address, port), 20).close()


def test_a_host_that_is_none_is_named_in_one_sentence() -> None:
    with pytest.raises(OSError, match=r"cannot listen on port 7860 of 300\.1\.1\.1: .*, or set PORT and HOST"):
        bind("300.1.1.1", 7860)


def test_as_many_connections_may_be_open_as_the_machine_allows() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
    try:
        allow_many_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_key_is_taken_as_it_is_and_an_empty_one_is_none() -> None:
    assert (key_from({}), key_from({"ENV_API_KEY": ""}), key_from({"ENV_API_KEY": "sesame"})) == (None, None, "sesame")


@pytest.mark.parametrize("key", [" sesame", "sesame\n", "s\u00e9same", "ses\x00ame", "ses\tame", "  "])
def test_a_key_that_no_header_can_hold_is_refused_without_being_told(key: str) -> None:
    with pytest.raises(SyncError, match="^ENV_API_KEY holds .*; set it anew$") as caught:
        key_from({"ENV_API_KEY": key})
    assert "ame" not in str(caught.value)


@pytest.mark.slow
def test_the_command_ends_with_one_sentence_when_its_key_is_none(process: StartProcess) -> None:
    command = process(SERVE, env={"HOST": "127.0.0.1", "ENV_API_KEY": "sesame-opens "})
    assert command.wait(STARTING_S) == 1
    (line,) = command.output().splitlines()
    assert line.startswith("space_env: ENV_API_KEY holds a line break, white space") and "sesame" not in line


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
