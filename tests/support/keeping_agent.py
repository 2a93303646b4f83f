"""A double of the agent: it keeps checkpoints and does nothing else.

Its fault: it has no sessions, and what it keeps stays until it is deleted.
"""

from http.server import BaseHTTPRequestHandler
from pathlib import Path

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.models import CheckpointInfo
from tests.support.unix_server import Answers, UnixServer

#: What the agent shares with the service.
TOKEN = "token-of-the-agent"


class AgentThatOnlyKeeps(UnixServer):
    """An agent without sessions; ``saved`` has its checkpoints by their ids."""

    def __init__(self, folder: Path, *checkpoints: CheckpointInfo) -> None:
        self.saved = {each.id: each for each in checkpoints}
        super().__init__(folder / "agent.sock", _Handler)


class _Handler(Answers, BaseHTTPRequestHandler):
    server: AgentThatOnlyKeeps

    def do_GET(self) -> None:
        keeps = self.path.startswith("/v1/checkpoints")
        saved = list(self.server.saved.values()) if keeps else []
        self.answer(200, codec.encode(saved))

    def do_POST(self) -> None:
        self.body()
        *_, checkpoint, order = self.path.split("/")
        assert order == "discard"
        self.server.saved.pop(checkpoint, None)
        self.answer(204)
