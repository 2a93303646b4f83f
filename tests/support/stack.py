"""The demo's stack, whose Hub and agent start quickly (see ``preloaded``)."""

from pathlib import Path

from demo.stack import Stack as DemoStack
from tests.support import preloaded

_PROGRAMS = {
    "jupyterhub": preloaded.HUB,
    "jupyterhub-gpu-reclaim-agent": preloaded.AGENT,
    "demo.agent": "demo.agent:main",
}


class Stack(DemoStack):
    """One Hub, one service, one agent, in one folder; see ``demo.stack``."""

    def _run(self, part: str, command: list[str], env: dict[str, str]) -> None:
        if command[1] == "-m":
            command = command[2:]
        program = _PROGRAMS[Path(command[0]).name]
        with self.log_path(part).open("ab") as log:
            self.parts[part] = preloaded.start(
                program, command, log=log.fileno(), env=env, cwd=self.folder
            )
