"""The command's arguments and how it refuses to start; the running server is tested with a browser."""

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from shared.monitor.__main__ import main, parse


def test_settings_stand_in_for_arguments() -> None:
    arguments = parse([], {"BUCKET": "me/mine", "PORT": "7999"})
    assert (arguments.bucket, arguments.port, arguments.vllm_url) == ("me/mine", 7999, [])


def test_arguments_win_over_settings() -> None:
    arguments = parse(["--bucket", "a/b", "--port", "80"], {"BUCKET": "me/mine", "PORT": "7999"})
    assert (arguments.bucket, arguments.port) == ("a/b", 80)


@pytest.mark.parametrize(
    ("argv", "env", "sentence"),
    [
        ([], {}, "no bucket: give --bucket or set BUCKET"),
        (["--bucket", "a/b", "--port", "0"], {}, "'0' is not a number from 1 to 65535"),
        (["--bucket", "a/b"], {"PORT": "x"}, "'x' is not a number from 1 to 65535"),
        (["--bucket", "a/b", "--vllm-url", "localhost:80"], {}, "is not an address"),
        (["--bucket", "a/b", "--env-url", "http://[::1"], {}, "is not an address"),
        (
            ["--bucket", "a/b", *["--vllm-url=http://h:1"] * 27],
            {},
            "27 times --vllm-url: no more than 26 replicas can be shown",
        ),
    ],
)
def test_a_wrong_argument_is_one_sentence(
    argv: list[str], env: dict[str, str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        parse(argv, env)
    assert raised.value.code == 2
    assert sentence in capsys.readouterr().err


def test_a_port_that_is_taken_is_one_sentence(
    tmp_path: Path, free_port: Callable[[], int], capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        assert main(["--bucket", f"local:{tmp_path}", "--port", str(port)], {}) == 1
    said = capsys.readouterr().err
    assert said == (
        f"monitor: cannot listen on port {port} of 127.0.0.1: it is already in use; stop the program that uses it, "
        "or choose another with --port\n"
    )


def test_a_bucket_that_cannot_be_used_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert main(["--bucket", f"local:{tmp_path}/file/bucket"], {}) == 1
    said = capsys.readouterr().err
    assert said.startswith("monitor: cannot use ") and said.count("\n") == 1


def test_a_folder_that_is_not_there_is_one_sentence_and_is_not_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "mistyped" / "bucket"
    assert main(["--bucket", f"local:{folder}"], {}) == 1
    said = capsys.readouterr().err
    assert said == (
        f"monitor: cannot use bucket local:{folder}: there is no folder {folder}; give that of a run's bucket\n"
    )
    assert list(tmp_path.iterdir()) == []
