"""With this folder in PYTHONPATH, names ending in .hf.space are this machine, in a process and all that it starts.

Whoever made the certificates of what answers there, named in SPACES_AUTHORITY as a file, is trusted beside the others.
"""

import os
import socket
import ssl
from typing import Any

_asked, _made = socket.getaddrinfo, ssl.create_default_context


def _on_this_machine(host: Any, *others: Any, **named: Any) -> Any:
    name = host.decode() if isinstance(host, bytes) else host
    is_space = isinstance(name, str) and name.endswith(".hf.space")
    return _asked("127.0.0.1" if is_space else host, *others, **named)


def _trusting(*given: Any, **named: Any) -> ssl.SSLContext:
    context = _made(*given, **named)
    context.load_verify_locations(os.environ["SPACES_AUTHORITY"])
    return context


socket.getaddrinfo = _on_this_machine
ssl.create_default_context = _trusting
