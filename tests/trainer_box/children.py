"""What a process does that a test starts; light, because the process imports this file."""

import os
import threading
import time
from multiprocessing.synchronize import Event


def end_at_once(code: int) -> None:
    raise SystemExit(code)


def die_while_a_thread_waits(event: Event) -> None:
    threading.Thread(target=event.wait, daemon=True).start()
    while not event._cond._sleeping_count._semlock._get_value():  # type: ignore[attr-defined]
        time.sleep(0.01)
    os._exit(7)
