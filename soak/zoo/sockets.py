"""Connections inside of a session: TCP and UDP on loopback, and unix sockets."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import threading
from pathlib import Path

from soak.zoo.keeper import digest


class Sockets:
    """Both ends of each kind, with bytes on the way that nobody has read."""

    SIZE = 30_000

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory(dir=Path.home())
        self.pairs = [self._tcp(), self._unix(), socket.socketpair()]
        self.datagrams = socket.socketpair(type=socket.SOCK_DGRAM)
        self.udp = [socket.socket(type=socket.SOCK_DGRAM) for _ in range(2)]
        for one in self.udp:
            one.bind(("127.0.0.1", 0))
        for one, other in (self.udp, self.udp[::-1]):
            one.connect(other.getsockname())
        self.asked = 0
        self.server = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._serve, daemon=True).start()
        self.client = socket.create_connection(self.server.getsockname(), timeout=30)
        self.turn = 0
        self._fill()

    def _tcp(self) -> tuple[socket.socket, socket.socket]:
        with socket.create_server(("127.0.0.1", 0)) as server:
            one = socket.create_connection(server.getsockname())
            return one, server.accept()[0]

    def _unix(self) -> tuple[socket.socket, socket.socket]:
        server, one = (socket.socket(socket.AF_UNIX) for _ in range(2))
        server.bind(f"{self.folder.name}/socket")
        server.listen()
        one.connect(f"{self.folder.name}/socket")
        self.listener = server
        return one, server.accept()[0]

    def _serve(self) -> None:
        while True:
            with self.server.accept()[0] as client:
                while data := client.recv(100):
                    client.sendall(data)

    def _fill(self) -> None:
        for number, (one, _) in enumerate([*self.pairs, self.datagrams]):
            one.sendall(os.urandom(1 if number == 3 else self.SIZE))

    def look(self) -> tuple[str, int]:
        held = []
        for one, other in self.pairs:
            data = b""
            while len(data) < self.SIZE:
                data += other.recv(self.SIZE - len(data))
            held.append(data)
            one.sendall(data)
        datagram = self.datagrams[1].recv(100)
        self.datagrams[0].send(datagram)
        return digest(*held, datagram, self.turn), self._ask()

    def _ask(self) -> int:
        """Use what is connected, and connect anew, too."""
        word = b"%d" % self.asked
        self.client.sendall(word)
        assert self.client.recv(100) == word
        self.udp[0].send(word)
        assert self.udp[1].recv(100) == word
        self.asked += 1
        return self.asked

    def work(self) -> None:
        self.turn += 1
        self.udp[0].send(b"x")
        assert self.udp[1].recv(100) == b"x"


class InFlight:
    """Connections on loopback with as much on the way as they take, both ways."""

    MOST = 1 << 20

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            one = socket.create_connection(server.getsockname())
            self.ends = (one, server.accept()[0])
        for end in self.ends:
            end.settimeout(30)
        self.turn = 0
        self.sent = [b"", b""]
        self._fill()

    def _fill(self) -> None:
        """Send what fits; nobody reads it."""
        for number, end in enumerate(self.ends):
            data, count = os.urandom(self.MOST), 0
            end.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while count < self.MOST:
                    count += end.send(data[count:])
            end.settimeout(30)
            self.sent[number] = data[:count]

    def _read(self) -> None:
        for data, end in zip(self.sent, reversed(self.ends), strict=True):
            read = b""
            while len(read) < len(data):
                part = end.recv(len(data) - len(read))
                assert part, "the connection has ended"
                read += part
            assert read == data

    def look(self) -> tuple[str, int]:
        """The same at each look: what was on the way is read, and as much is sent."""
        self._read()
        self._fill()
        return digest(self.turn), 0

    def work(self) -> None:
        self.turn += 1
