"""Clients as no library makes them: raw sockets that go silent, never read, or break off without a word."""

import base64
import os
import socket
import struct
from urllib.parse import urlsplit

DEADLINE_S = 20.0
_PING = 0x9


def upgraded(url: str, path: str = "/ws", small_window: bool = False) -> socket.socket:
    """A TCP connection on which a WebSocket is open. It answers no ping by itself."""
    host, _, port = urlsplit(url).netloc.partition(":")
    raw = socket.socket()
    if small_window:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    raw.settimeout(DEADLINE_S)
    raw.connect((host, int(port)))
    key = base64.b64encode(os.urandom(16)).decode()
    raw.sendall(
        f"GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
    )
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += raw.recv(1)
    assert answer.startswith(b"HTTP/1.1 101"), answer
    return raw


def frame(text: str, opcode: int = 1) -> bytes:
    """A masked frame of less than 64 KiB."""
    data, mask = text.encode(), os.urandom(4)
    length = bytes([0x80 | len(data)]) if len(data) < 126 else struct.pack("!BH", 0x80 | 126, len(data))
    masked = bytes(byte ^ mask[i % 4] for i, byte in enumerate(data))
    return bytes([0x80 | opcode]) + length + mask + masked


def receive_frame(raw: socket.socket) -> bytes:
    """The payload of the next frame of less than 64 KiB that is no ping; pings are not answered."""
    while True:
        first, length = exactly(raw, 2)
        if length == 126:
            (length,) = struct.unpack("!H", exactly(raw, 2))
        payload = exactly(raw, length)
        if first & 0x0F != _PING:
            return payload


def exactly(raw: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = raw.recv(count - len(data))
        assert piece, "the connection was closed"
        data += piece
    return data


def reset_connection(raw: socket.socket) -> None:
    """Break off as the kernel of a killed process may do it: RST, no closing handshake."""
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raw.close()
