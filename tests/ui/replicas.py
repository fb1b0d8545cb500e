"""A stand-in for the status of a Space, a real server on loopback whose answer a test changes while it runs."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

from shared.types import Json
from tests.http_servers import LoopbackServer, QuietHandler, listening


class StubStatus:
    """Answers every GET with `document`, or with `status` alone where that is not 200."""

    def __init__(self, document: Json) -> None:
        self.document = document
        self.status = 200
        self.asked = 0
        self.url = ""


@contextmanager
def stub(document: Json) -> Iterator[StubStatus]:
    told = StubStatus(document)

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            told.asked += 1
            self.reply(told.status, json.dumps(told.document).encode() if told.status == 200 else b"")

    with listening(LoopbackServer(Handler)) as told.url:
        yield told
