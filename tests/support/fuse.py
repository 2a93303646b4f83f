"""A file system in user space (FUSE) with one file, whose server may stop answering.

The server is a program of its own; stopped by a signal it is what an sshfs without
network is, or an NFS server that is away: whoever asks it waits. The protocol is that
of ``linux/fuse.h``, version 7.31, as far as one file needs it.

    python -I -S fuse.py FOLDER [MUTE]

mounts it at FOLDER, says "up", and serves it. MUTE: the number of a request that it
takes and never answers, from SIGUSR1 on.
"""

import contextlib
import ctypes
import errno
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path

LOOKUP, GETATTR, READ, FLUSH = 1, 3, 15, 25
_INIT, _OPEN, _WRITE, _STATFS, _RELEASE, _OPENDIR = 26, 14, 16, 17, 18, 27
_READDIR, _RELEASEDIR, _ACCESS, _FSYNC = 28, 29, 34, 20
_NO_ANSWER = {2, 36, 42}  # FORGET, INTERRUPT, BATCH_FORGET
_HEAD = struct.Struct("=IIQQIIIHH")
_ROOT, _FILE, NAME = 1, 2, "file"
_SIZE = 4096
_TEXT = b"x" * _SIZE
_MNT_DETACH = 2


def _attributes(node: int) -> bytes:
    mode = 0o40755 if node == _ROOT else 0o100666
    numbers = (node, _SIZE, 8, 10**9, 10**9, 10**9, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)
    return struct.pack("=QQQQQQIIIIIIIIII", *numbers)


def _answer(kind: int, node: int, body: bytes) -> tuple[int, bytes]:
    if kind == _INIT:
        words = (7, 31, 65536, 0, 12, 10, 65536, 1, 16, 0)
        return 0, struct.pack("=IIIIHHIIHH", *words) + bytes(32)
    if kind == LOOKUP:
        if node != _ROOT or body.rstrip(b"\0") != NAME.encode():
            return -errno.ENOENT, b""
        # Nothing is kept (the lives of name and attributes are 0): each look asks.
        return 0, struct.pack("=QQQQII", _FILE, 0, 0, 0, 0, 0) + _attributes(_FILE)
    if kind == GETATTR:
        return 0, struct.pack("=QII", 0, 0, 0) + _attributes(node)
    if kind in {_OPEN, _OPENDIR}:
        return 0, struct.pack("=QII", 0, 0, 0)
    if kind == READ:
        _, offset, size = struct.unpack_from("=QQI", body)
        return 0, _TEXT[offset : offset + size]
    if kind == _WRITE:
        return 0, struct.pack("=II", struct.unpack_from("=QQI", body)[2], 0)
    if kind == _STATFS:
        return 0, struct.pack("=QQQQQIIII", 9, 9, 9, 9, 9, 4096, 255, 4096, 0) + bytes(
            24
        )
    if kind in {_RELEASE, _RELEASEDIR, FLUSH, _ACCESS, _FSYNC, _READDIR}:
        return 0, b""
    return -errno.ENOSYS, b""


def serve(folder: str, mute: int) -> None:
    server = os.open("/dev/fuse", os.O_RDWR)
    words = f"fd={server},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"far", folder.encode(), b"fuse.sshfs", 0, words):
        sys.exit(f"no FUSE here: {os.strerror(ctypes.get_errno())}")
    asked = []
    signal.signal(signal.SIGUSR1, lambda *_: asked.append(mute))
    sys.stdout.write("up\n")
    sys.stdout.flush()
    while True:
        try:
            request = os.read(server, 1 << 18)
        except FileNotFoundError:
            continue  # it was interrupted
        except OSError:
            return
        _, kind, unique, node, *_ = _HEAD.unpack_from(request)
        if kind in _NO_ANSWER or kind in asked:
            continue
        error, body = _answer(kind, node, request[_HEAD.size :])
        answer = struct.pack("=IiQ", 16 + len(body), error, unique) + body
        with contextlib.suppress(FileNotFoundError):
            os.write(server, answer)


class FuseServer:
    here: bool  #: whether there is such a thing on this machine

    def __init__(self, folder: Path, mute: int = 0) -> None:
        self.folder = folder
        self.file = folder / NAME
        words = [sys.executable, "-I", "-S", __file__, str(folder), str(mute)]
        self._server = subprocess.Popen(words, stdout=subprocess.PIPE)
        assert self._server.stdout is not None
        self.here = self._server.stdout.readline() == b"up\n"

    def stop(self) -> None:
        self._server.send_signal(signal.SIGSTOP)

    def fall_mute(self) -> None:
        """From now on that kind of request is taken, and not answered."""
        self._server.send_signal(signal.SIGUSR1)

    def go_on(self) -> None:
        self._server.send_signal(signal.SIGCONT)

    def end(self) -> None:
        self._server.kill()
        self._server.wait()
        self._server.stdout.close()
        ctypes.CDLL(None).umount2(os.fsencode(self.folder), _MNT_DETACH)


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
