"""A session's downloads that a suspend has cut, through the agent's HTTP calls."""

import socket
import sys

import pytest

from tests.support.agent import wait_for
from tests.support.long_stories import but

#: One download that waits for its second half, and one that is there, but not read.
PROGRAM = """
import errno, os, socket, sys, time
address = ("127.0.0.1", int(sys.argv[1]))
waiting, unread = socket.create_connection(address), socket.create_connection(address)
unread.shutdown(socket.SHUT_WR)
def read(one):
    try:
        return repr(one.recv(99))
    except OSError as error:
        return errno.errorcode[error.errno]
def say(*ends):
    os.write(1, " ".join(ends).encode() + b"\\n")
say(read(waiting))
while not os.path.exists(sys.argv[2]):
    time.sleep(0.02)
say(read(waiting), read(unread), read(waiting))
time.sleep(3000)
"""


@pytest.mark.parametrize("generations", but([1, 2], 1))
def test_download_is_reset_after_the_return(agent, folder, places, generations):
    go = folder / "go"
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(20)
        command = (sys.executable, "-I", "-S", "-c", PROGRAM)
        port = str(server.getsockname()[1])
        place = places("start", *command, port, str(go), env={})
        waiting, unread = server.accept()[0], server.accept()[0]
        with waiting, unread:
            # It is closed by both sides, so there is nothing left to be cut.
            assert unread.recv(1) == b""
            unread.sendall(b"all of it")
            unread.close()
            waiting.sendall(b"half")
            wait_for(lambda: "half" in place.output.read_text())
            for generation in range(1, generations + 1):
                checkpoint = f"cp-{generation}"
                agent.suspend(place, checkpoint, generation)
                place = agent.come_back(places("hold"), checkpoint)
        go.touch()
        wait_for(lambda: "\n" in place.output.read_text())
        said = place.output.read_text()
        assert said == "ECONNRESET ECONNRESET ENOTCONN\n"
