"""What a rank has sent, by the kernel's counters, and a slow network that needs no privileges."""

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

COUNTER = Path("/sys/class/net/eth0/statistics/tx_bytes")  # of a virtual host
SO_MAX_PACING_RATE = 47  # bytes a second; Python has no name for it
BYTES_SENT = struct.Struct("200xQ")  # in the kernel's struct tcp_info


def interface_bytes() -> int:
    """Bytes that have left this host, headers included; 0 where it has no eth0."""
    return int(COUNTER.read_text()) if COUNTER.exists() else 0


def socket_bytes() -> int:
    """Bytes that this process has sent by its TCP connections, without headers."""
    size = BYTES_SENT.size
    options = (socket.IPPROTO_TCP, socket.TCP_INFO, size)
    found = [connection.getsockopt(*options) for connection in connections()]
    return sum(BYTES_SENT.unpack(info)[0] for info in found if len(info) == size)


def connections() -> Iterator[socket.socket]:
    """The TCP connections of this process, those of its C++ libraries included.

    Each is a duplicate that stays open until the next one is asked for.
    """
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # it is none, or is just being closed
            if not str(entry.readlink()).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(entry.name))) as connection:
                if connection.family in (socket.AF_INET, socket.AF_INET6):
                    connection.getpeername()
                    yield connection


def pace(bytes_per_second: float) -> None:
    """Limit each TCP connection of this process to that rate.

    In a ring, which Gloo's allreduce is, a rank sends to one other: its connection is its link.
    """
    for connection in connections():
        _pace(connection, bytes_per_second)


def _pace(connection: socket.socket, bytes_per_second: float) -> None:
    rate = round(bytes_per_second)
    connection.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, struct.pack("Q", rate))


def refusal(bytes_per_second: float) -> str | None:
    """Why sockets cannot be paced here; None if they can, as a connection of a moment shows."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        receiver, _ = server.accept()
    with sender, receiver:
        try:
            _pace(sender, bytes_per_second)
        except OSError as error:
            return f"the kernel refuses SO_MAX_PACING_RATE ({error.strerror})"
        count = max(round(bytes_per_second / 10), 1_000_000)
        sending = threading.Thread(target=sender.sendall, args=(bytes(count),))
        start = time.monotonic()
        sending.start()
        left = count
        while left:
            left -= len(receiver.recv(min(left, 1 << 16)))
        sending.join()
        rate = count / (time.monotonic() - start)
    if rate > 2 * bytes_per_second:
        return f"paced to {bytes_per_second / 1e6:.0f} MB/s, a socket sent {rate / 1e6:.0f} MB/s"
    return None
