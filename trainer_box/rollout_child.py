"""How the process of the rollouts ends and what it logs. Knows nothing of TRL and of rollouts."""

import logging
import multiprocessing
import os
import threading

from shared.errors import SyncError


def end_with_parent() -> None:
    """From now on this process ends when the one that started it does, whatever it is doing."""
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def without_known_trace(record: logging.LogRecord) -> bool:
    """A filter of a logger: of an error that says it all, only the message is logged."""
    if record.exc_info and isinstance(record.exc_info[1], SyncError):
        record.exc_info = None
    return True


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
