"""With this folder in PYTHONPATH, names ending in .hf.space are this machine, in a process and all that it starts."""

import socket
from typing import Any

_asked = socket.getaddrinfo


def _on_this_machine(host: Any, *others: Any, **named: Any) -> Any:
    is_space = isinstance(host, str) and host.endswith(".hf.space")
    return _asked("127.0.0.1" if is_space else host, *others, **named)


socket.getaddrinfo = _on_this_machine
