# SPDX-License-Identifier: Apache-2.0
"""How fast messages go from one agent (host_agent.py) to another, and what does not
arrive. Sent with it."""

import hmac
import socket
import struct
import threading
import time

import host_facts

TOKEN_BYTES = 32
HEAD = struct.Struct("!cQ")  # b"e": send back so much; b"s": take and say when
LARGE = 256 << 10
LARGEST = 64 << 20
ENOUGH_SECONDS = 0.15
# Sizes of packets to try when full ones do not arrive, without 40 bytes of
# headers.
SMALLER_SEGMENTS = (1360, 1160, 960, 536)


def receive(connection, count):
    data = bytearray()
    while len(data) < count:
        block = connection.recv(min(count - len(data), 1 << 16))
        if not block:
            raise OSError("closed by the other side")
        data += block
    return bytes(data)


def serve(connection, token):
    with connection:
        connection.settimeout(30)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            if not hmac.compare_digest(receive(connection, TOKEN_BYTES), token):
                return
            while True:
                kind, count = HEAD.unpack(receive(connection, HEAD.size))
                if kind == b"e":
                    connection.sendall(receive(connection, count))
                else:
                    left = count
                    while left:
                        block = connection.recv(min(left, 1 << 18))
                        if not block:
                            return
                        left -= len(block)
                    connection.sendall(b"!")
        except OSError:
            pass


def bind(listener, address, ports):
    """To a free port of `ports`, or any where that is None."""
    first, last = ports or (0, 0)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    for port in range(first, last + 1):
        try:
            listener.bind((address, port))
            return
        except OSError as error:
            why = error
    listener.close()
    raise why


def op_listen(request):
    """Listens for probes of other agents."""
    address = request["address"]
    listener = socket.socket(host_facts.family_of(address), socket.SOCK_STREAM)
    try:
        bind(listener, address, request["ports"])
    except OSError as error:
        return {"error": error.strerror}
    listener.listen(16)
    token = request["token"].encode()

    def accept():
        while True:
            connection, _ = listener.accept()
            threading.Thread(
                target=serve, args=(connection, token), daemon=True
            ).start()

    threading.Thread(target=accept, daemon=True).start()
    return {"port": listener.getsockname()[1]}


def connect(request, segment=0):
    connection = socket.socket(
        host_facts.family_of(request["address"]), socket.SOCK_STREAM
    )
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if segment:
            connection.setsockopt(
                socket.IPPROTO_TCP, socket.TCP_MAXSEG, segment
            )
        connection.settimeout(request["patience"])
        connection.connect((request["address"], request["port"]))
        connection.sendall(request["token"].encode())
    except BaseException:
        connection.close()
        raise
    return connection


def push(connection, count):
    """Seconds until the other side has taken `count` bytes."""
    start = time.monotonic()
    connection.sendall(HEAD.pack(b"s", count))
    block = b"\xa5" * min(count, 1 << 18)
    left = count
    while left:
        left -= connection.send(block[: min(left, len(block))])
    receive(connection, 1)
    return time.monotonic() - start


def passing_segment(request):
    for segment in SMALLER_SEGMENTS:
        try:
            with connect(dict(request, patience=2), segment) as connection:
                push(connection, LARGE // 8)
                return segment
        except OSError:
            pass
    return 0


def op_link(request):
    """Small and large messages from here to another agent: {round_trip,
    bits_per_second}, or {failed: "connect" | "small" | "large", why, ...}."""
    try:
        connection = connect(request)
    except OSError as error:
        refused = isinstance(error, ConnectionRefusedError)
        return {
            "failed": "connect",
            "refused": refused,
            "why": error.strerror or "no answer",
        }
    with connection:
        try:
            trips = []
            for _ in range(10):
                start = time.monotonic()
                connection.sendall(HEAD.pack(b"e", 64) + b"." * 64)
                receive(connection, 64)
                trips.append(time.monotonic() - start)
        except OSError as error:
            return {"failed": "small", "why": str(error)}
        try:
            count = LARGE
            # What queues on the way take at once, the first one fills.
            push(connection, count)
            seconds = push(connection, count)
            while seconds < ENOUGH_SECONDS and count < LARGEST:
                count *= 4
                seconds = push(connection, count)
        except OSError as error:
            return {
                "failed": "large",
                "bytes": count,
                "why": str(error),
                "segment": passing_segment(request),
            }
    trip = min(trips)
    return {
        "round_trip": trip,
        "bits_per_second": 8 * count / max(seconds - trip, 1e-9),
    }
