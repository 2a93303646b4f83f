"""A terminal in which ``top`` draws and ``vim`` has changes that nobody has saved."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from demo.user import Server, UserError, read_terminal

if TYPE_CHECKING:
    from pathlib import Path

ESCAPE = "\x1b"
CTRL_Z = "\x1a"


@dataclass
class Terminal:
    """One terminal; ``vim`` is its first job, ``top`` its second."""

    server: Server
    name: str
    home: Path
    pids: str
    asked: int = 0

    @classmethod
    def make(cls, server: Server, home: Path) -> Terminal:
        """Start both, and leave ``top`` in the foreground."""
        name = server.start_terminal()
        with server.websocket(f"terminals/websocket/{name}") as ws:
            for line in (["set_size", 30, 100], ["stdin", "PS1='> '\r"]):
                ws.send(json.dumps(line))
            ws.send(json.dumps(["stdin", "vim -u NONE -n draft\r"]))
            read_terminal(ws, until="draft")
            ws.send(json.dumps(["stdin", f"iwritten in vim{ESCAPE}"]))
            time.sleep(0.3)
            ws.send(json.dumps(["stdin", CTRL_Z]))
            read_terminal(ws, until="Stopped")
            line = "top -d 1 & echo pids=$$,$(jobs -p | tr '\\n' ,)=; fg %2\r"
            ws.send(json.dumps(["stdin", line]))
            seen = read_terminal(ws, until="load average")
        found = re.search(r"pids=([\d,]+)=", seen)
        if not found:
            raise UserError(f"no pids in the terminal: {seen!r}")
        return cls(server, name, home, found[1])

    def check(self) -> None:
        """``top`` draws, the shell has both jobs, and ``vim`` its text.

        Raises:
            UserError: one of them is not as it was.
        """
        self.asked += 1
        copy = self.home / f"copy-{self.asked}"
        path = f"terminals/websocket/{self.name}"
        with self.server.websocket(path) as ws:
            read_terminal(ws, until="load average")
            ws.send(json.dumps(["stdin", CTRL_Z]))
            time.sleep(0.3)
            line = f"echo {self.asked}=$$,$(jobs -p | tr '\\n' ,)=; fg %1\r"
            ws.send(json.dumps(["stdin", line]))
            read_terminal(ws, until=f"{self.asked}={self.pids}=")
            time.sleep(0.3)
            ws.send(json.dumps(["stdin", f":w! {copy.name}\r"]))
            until = time.monotonic() + 20
            while not copy.exists() or not copy.stat().st_size:
                if time.monotonic() > until:
                    raise UserError("vim does not write")
                time.sleep(0.05)
            ws.send(json.dumps(["stdin", CTRL_Z]))
            time.sleep(0.3)
            ws.send(json.dumps(["stdin", "fg %2\r"]))
            read_terminal(ws, until="load average")
        text = copy.read_text()
        copy.unlink()
        if text != "written in vim\n":
            raise UserError(f"vim has {text!r}")
