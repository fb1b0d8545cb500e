"""Receivers of a run, each a `Follower` in a process of its own, that catch up when told to."""

import multiprocessing
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection

import torch

from shared import fingerprint
from shared.bucket import open_bucket
from shared.follower import Follower, Weights

_ANSWER_S, _ENDING_S = 600.0, 20.0


class Receivers:
    """Each call is about the first `count` of them; every `catch_up` is answered once."""

    def __init__(self, connections: Sequence[Connection]) -> None:
        self._connections = connections

    def catch_up(self, count: int) -> None:
        """Does not wait for them."""
        for connection in self._connections[:count]:
            connection.send("catch up")

    def reached(self, count: int) -> list[str]:
        """The fingerprints of the weights that they then hold, each counted by itself."""
        return [self._answer(connection) for connection in self._connections[:count]]

    @staticmethod
    def _answer(connection: Connection) -> str:
        if not connection.poll(_ANSWER_S):
            raise TimeoutError(f"a receiver has not caught up within {_ANSWER_S:.0f} s")
        return str(connection.recv())


@contextmanager
def receiver_processes(bucket: str, run_id: str, count: int) -> Iterator[Receivers]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = zip(*(context.Pipe() for _ in range(count)), strict=True)
    processes = [context.Process(target=_follow, args=(end, bucket, run_id), daemon=True) for end in theirs]
    for process, end in zip(processes, theirs, strict=True):
        process.start()
        end.close()
    try:
        yield Receivers(ours)
    finally:
        for end in ours:
            end.close()
        for process in processes:
            process.join(_ENDING_S)
            process.kill()


def _follow(connection: Connection, bucket: str, run_id: str) -> None:
    """Until the other end is closed."""
    torch.set_num_threads(1)
    follower, weights = Follower(open_bucket(bucket), run_id), Weights()
    while True:
        try:
            connection.recv()
        except EOFError:
            return
        follower.catch_up(weights)
        connection.send(fingerprint.to_text(fingerprint.fingerprint(weights)))
