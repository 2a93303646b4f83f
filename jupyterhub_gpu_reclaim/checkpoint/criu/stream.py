"""CRIU's image files as streams: its ``--stream`` protocol, both ways.

CRIU (criu/img-streamer.c) connects to a socket in the image folder and asks for one
file after the other: ``u32 size`` and a message ``{1: filename}``; when it restores it
reads ``u32 size`` and ``{1: exists}``; then it passes its end of a pipe over with
SCM_RIGHTS and one byte. There is a thread for each pipe, because several are open at
once and in no fixed order. Nothing of what CRIU says is trusted.

An error of ours (a full store, a damaged checkpoint) closes every pipe and the socket.
CRIU then fails by itself and cures the session's processes; the error is kept in
``failure``.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import select
import socket
import struct
import sys
import threading
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux.descriptors import closing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

#: A request holds a file name; more is not CRIU.
REQUEST_LIMIT = 4096


class StreamBroken(ReclaimError):
    """CRIU has left its stream, or said what was no request."""

    def __init__(self, error: Exception) -> None:
        super().__init__(Reason.INTERNAL, detail=f"CRIU's stream broke off: {error}")


def reply(*, exists: bool) -> bytes:
    return struct.pack("=IBB", 2, 0x08, exists)


def request(connection: socket.socket) -> str | None:
    """The file name that CRIU asks for; None when it has ended.

    Raises:
        ValueError: that was not a request.
    """
    head = connection.recv(4, socket.MSG_WAITALL)
    if not head:
        return None
    size = int.from_bytes(head, sys.byteorder)
    if len(head) < 4 or not 2 <= size <= REQUEST_LIMIT:
        raise ValueError(f"a request of {size} bytes")
    body = connection.recv(size, socket.MSG_WAITALL)
    if len(body) < size:
        raise ValueError("cut off in a request")
    try:
        name: bytes = images.parse("img_streamer_request_entry", body).filename
    except ReclaimError as error:
        raise ValueError(error.detail) from None
    if not name:
        raise ValueError("a request without a file name")
    return name.decode("ascii")


def receive_pipe(connection: socket.socket) -> int:
    """The end of a pipe that CRIU passes over.

    Raises:
        ValueError: something else came.
    """
    room = socket.CMSG_SPACE(array.array("i", [0]).itemsize)
    data, ancillary, _, _ = connection.recvmsg(1, room, socket.MSG_CMSG_CLOEXEC)
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            return array.array("i", payload[:4])[0]
    raise ValueError("no pipe came" if data else "cut off before a pipe came")


CAPTURE_SOCKET = "streamer-capture.sock"
RESTORE_SOCKET = "streamer-serve.sock"
#: How the names of the images begin that hold memory: nearly all bytes there are.
PAGES = "pages-"
#: Of a deleted file: what it was, in front of its contents.
GHOST = "ghost-file-"
#: One read of a pipe at most; also what a pipe is asked to hold. More than 1 MiB needs
#: CAP_SYS_RESOURCE.
BLOCK = 1 << 20
#: So much of an image of memory is passed on at once, for many to share it.
_PAGES_BLOCK = 16 << 20
#: Seconds that are waited for those in the middle of something after a failure, and
#: between two looks whether there is one.
_LEFT_SECONDS, _LOOK_SECONDS = 0.2, 0.05


class Sink(Protocol):
    """Destination of one image file. One that is not closed was not completed."""

    def write(self, data: memoryview, /) -> object:
        """Take these bytes; the buffer is used again after the return."""

    def close(self) -> None: ...


@runtime_checkable
class PipeSink(Protocol):
    """What empties a pipe by itself, faster than it could be fed."""

    def take_pipe(self, pipe: int, /) -> None:
        """Take everything up to the pipe's end."""


class StreamServer:
    """Base of both directions: a listening socket, a thread per pipe, one failure."""

    SOCKET = ""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._listener: socket.socket | None = None
        self._connection: socket.socket | None = None
        self._threads: list[threading.Thread] = []
        self._pipes: set[int] = set()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        #: The first error of ours; the caller raises it.
        self.failure: Exception | None = None

    def start(self) -> None:
        """Begin to listen; nothing is open before.

        Raises:
            OSError: the folder is gone.
        """
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with closing(os.open(self._folder, os.O_PATH | os.O_DIRECTORY)) as folder:
            # Through the descriptor: a socket's path may have 107 letters only.
            self._listener.bind(f"/proc/self/fd/{folder}/{self.SOCKET}")
        (self._folder / self.SOCKET).chmod(0o600)
        self._listener.listen(1)
        main = threading.Thread(
            target=self._serve,
            args=(self._listener,),
            name="criu-stream",
            daemon=True,
        )
        self._threads.append(main)  # it may begin others until it ends
        main.start()

    def fileno(self) -> int:
        return self._wake

    def fail(self, error: Exception) -> None:
        """Keep the first error and cut CRIU off, so that it fails and cures.

        CRIU, which waits at a pipe, must not wait for a thread that waits for a store:
        that pipe's other end is closed everywhere.
        """
        with self._lock:
            if self.failure is None:
                self.failure = error
        self._ended.set()
        os.eventfd_write(self._wake, 1)
        # Shut down rather than closed: the thread that reads it closes it.
        for end in (self._connection, self._listener):
            if end is not None:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
        with self._lock:
            nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            for pipe in self._pipes:
                os.dup2(nothing, pipe, inheritable=False)
            os.close(nothing)

    def finish(self, look: Callable[[], None] = lambda: None) -> None:
        """Wait for what CRIU, which has ended, has sent; close everything.

        After a failure nothing of that counts any more: whoever is still in the middle
        of it, as what waits for a store that hangs, is left to end alone.
        """
        if self._listener is None:
            return
        if self._connection is None:
            self._ended.set()
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
        self._join(look)
        self._listener.close()
        self._listener = None

    def _join(self, look: Callable[[], None]) -> None:
        patience = _LEFT_SECONDS
        while alive := [thread for thread in self._threads if thread.is_alive()]:
            look()
            if self.failure is not None:
                patience -= _LOOK_SECONDS
            if patience <= 0:
                return
            alive[0].join(_LOOK_SECONDS)

    def __del__(self) -> None:
        os.close(self._wake)  # which threads that were left behind use as well

    def _serve(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:
            # Shut down by fail() or finish() before CRIU came.
            return
        with connection:
            self._connection = connection
            try:
                while (name := request(connection)) is not None:
                    self._open(connection, name)
            except (OSError, ValueError, UnicodeDecodeError) as error:
                if not self._ended.is_set():
                    self.fail(StreamBroken(error))
            except Exception as error:  # noqa: BLE001 - the caller raises it
                self.fail(error)

    def _open(self, connection: socket.socket, name: str) -> None:
        raise NotImplementedError

    def _spawn(self, pipe: int, name: str, work: Callable[[int], None]) -> None:
        def run() -> None:
            try:
                work(pipe)
            except Exception as error:  # noqa: BLE001 - the caller raises it
                self.fail(error)
            finally:
                with self._lock:
                    self._pipes.remove(pipe)
                    os.close(pipe)

        with contextlib.suppress(OSError):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, BLOCK)
        with self._lock:
            self._pipes.add(pipe)
        thread = threading.Thread(target=run, name=f"criu-{name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _ready(self, pipe: int, event: int) -> bool:
        poll = select.poll()
        poll.register(pipe, event)
        poll.register(self._wake, select.POLLIN)
        poll.poll()
        return not self._ended.is_set()


class CaptureServer(StreamServer):
    SOCKET = CAPTURE_SOCKET

    def __init__(self, folder: Path, sinks: Callable[[str], Sink | PipeSink]) -> None:
        super().__init__(folder)
        self._sinks = sinks

    def _open(self, connection: socket.socket, name: str) -> None:
        pipe = receive_pipe(connection)
        try:
            sink = self._sinks(name)
        except Exception as error:  # noqa: BLE001 - the caller raises it
            # Kept before CRIU can notice: what it then complains of is not the cause.
            self.fail(error)
            os.close(pipe)
            return
        if isinstance(sink, PipeSink):
            self._spawn(pipe, name, sink.take_pipe)
        else:
            most = _PAGES_BLOCK if name.startswith(PAGES) else BLOCK
            self._spawn(pipe, name, lambda end: self._drain(end, sink, most))

    def _drain(self, pipe: int, sink: Sink, most: int) -> None:
        os.set_blocking(pipe, False)
        # Made once for the file: fresh memory would cost more than the reading.
        view = memoryview(bytearray(most))
        filled = 0
        while self._ready(pipe, select.POLLIN):
            try:
                count = os.readv(pipe, [view[filled:]])
            except BlockingIOError:
                continue
            filled += count
            if filled == most or (count == 0 and filled):
                sink.write(view[:filled])
                filled = 0
            if count == 0:
                sink.close()
                return


class RestoreServer(StreamServer):
    SOCKET = RESTORE_SOCKET

    def __init__(
        self,
        folder: Path,
        source: Callable[[str], Iterable[bytes | memoryview] | None],
    ) -> None:
        super().__init__(folder)
        self._source = source

    def _open(self, connection: socket.socket, name: str) -> None:
        try:
            buffers = self._source(name)
        except Exception as error:  # noqa: BLE001 - the caller raises it
            self.fail(error)
            return
        connection.sendall(reply(exists=buffers is not None))
        if buffers is not None:
            self._give(receive_pipe(connection), name, buffers)

    def _give(
        self, pipe: int, name: str, buffers: Iterable[bytes | memoryview]
    ) -> None:
        """Fill a pipe, in a thread where that has to wait for the store or for CRIU.

        Nearly all images are small and in memory. A thread of its own for each would
        wait twice more for a processor, and on a busy machine each time takes long.
        """
        try:
            data = b"".join(buffers) if isinstance(buffers, list) else None
            room = fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ)
            if data is not None and len(data) <= room:
                with contextlib.suppress(BrokenPipeError):  # see :meth:`_fill`
                    while data:
                        data = data[os.write(pipe, data) :]
                os.close(pipe)
                return
        except OSError:
            os.close(pipe)
            raise
        self._spawn(pipe, name, lambda end: self._fill(end, buffers))

    def _fill(self, pipe: int, buffers: Iterable[bytes | memoryview]) -> None:
        os.set_blocking(pipe, False)
        for buffer in buffers:
            data = memoryview(buffer).cast("B")
            while data:
                if not self._ready(pipe, select.POLLOUT):
                    return
                try:
                    data = data[os.write(pipe, data[:BLOCK]) :]
                except BlockingIOError:
                    continue
                except BrokenPipeError:
                    # CRIU reads no further than it needs, which is its right.
                    return
