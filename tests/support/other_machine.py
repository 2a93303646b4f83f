"""Another machine, as far as TCP can tell: a network of its own on a cable to ours."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.hub import wait_until

OUR_ADDRESS, ADDRESS, PORT = "10.77.0.1", "10.77.0.2", 5432
#: It takes whoever calls, and sends back what it is sent.
ECHO = """
import socketserver
class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(65536):
            self.request.sendall(data)
socketserver.ThreadingTCPServer.daemon_threads = True
socketserver.ThreadingTCPServer(("", 5432), Echo).serve_forever()
"""


@contextlib.contextmanager
def other_machine() -> Iterator[subprocess.Popen[bytes]]:
    """It answers at ``ADDRESS`` and ``PORT``; it goes with its cable."""
    machine = subprocess.Popen(["unshare", "--net", sys.executable, "-c", ECHO])
    there = ["nsenter", f"--net=/proc/{machine.pid}/ns/net"]
    try:
        wait_until(lambda: _is_apart(machine.pid) and _listens(there), 60)
        cable = ("type", "veth", "peer", "name", "far", "netns", str(machine.pid))
        _run("ip", "link", "add", "near", *cable)
        _run("ip", "address", "add", f"{OUR_ADDRESS}/24", "dev", "near")
        _run("ip", "link", "set", "near", "up")
        _run(*there, "ip", "address", "add", f"{ADDRESS}/24", "dev", "far")
        _run(*there, "ip", "link", "set", "far", "up")
        yield machine
    finally:
        machine.kill()
        machine.wait(60)
        subprocess.run(["ip", "link", "delete", "near"], check=False)


def _is_apart(pid: int) -> bool:
    """Until then it is on this machine, where another program may listen there."""
    theirs, ours = (Path(f"/proc/{one}/ns/net").stat() for one in (pid, "self"))
    return theirs.st_ino != ours.st_ino


def _listens(there: list[str]) -> bool:
    command = [*there, "cat", "/proc/net/tcp"]
    table = subprocess.run(command, capture_output=True, check=False).stdout
    return f":{PORT:04X} ".encode() in table


def _run(*command: str) -> None:
    subprocess.run(command, check=True)
