"""``jupyterhub-gpu-reclaim-agent``: the program that runs as root on every node.

Started by systemd (or the demo). It reads its configuration, wires engine and store,
settles what a former agent left (``recovery``) and then answers the service. The only
place in the agent that wires; it never prints or logs the token.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import ipaddress
import logging
import os
import secrets
import signal
import ssl
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets, bind_unix_socket
from traitlets import Enum, Integer, TraitError, Unicode, validate
from traitlets.config import Application, catch_config_error

from jupyterhub_gpu_reclaim import __version__, observability
from jupyterhub_gpu_reclaim.agent import recovery, routes
from jupyterhub_gpu_reclaim.agent.node import LocalNode
from jupyterhub_gpu_reclaim.agent.operations import Operations
from jupyterhub_gpu_reclaim.agent.parts import Limits, Parts
from jupyterhub_gpu_reclaim.agent.placements import LocalPlacements
from jupyterhub_gpu_reclaim.agent.records import Records, write_durably
from jupyterhub_gpu_reclaim.agent.tool import Tool
from jupyterhub_gpu_reclaim.agent.watcher import Watcher
from jupyterhub_gpu_reclaim.clock import SystemClock
from jupyterhub_gpu_reclaim.engine import criu
from jupyterhub_gpu_reclaim.engine.ports import Reservations
from jupyterhub_gpu_reclaim.metrics import jupyter
from jupyterhub_gpu_reclaim.metrics.activity import Sampler
from jupyterhub_gpu_reclaim.store.folder import FolderBackend
from jupyterhub_gpu_reclaim.store.repository import Repository
from jupyterhub_gpu_reclaim.traits import Seconds

_log = logging.getLogger(__name__)

_HOME = Path("/var/lib/jupyterhub-gpu-reclaim")
_UNIX = "unix:"
#: A Unix socket's path, CRIU's below the work folder included, fits in 108 bytes.
_LONGEST_STATE_DIR = 60


class AgentApp(Application):
    """The agent's settings; each is ``c.AgentApp.<name>`` in the configuration file."""

    name = "jupyterhub-gpu-reclaim-agent"
    version = __version__
    description = (
        "Saves and brings back the sessions of this machine, on the service's orders."
    )
    aliases = {  # noqa: RUF012 traitlets' own way
        "config": "AgentApp.config_file",
        "listen": "AgentApp.listen",
        "log-level": "AgentApp.log_level",
    }
    flags = {}  # noqa: RUF012

    config_file = Unicode(
        "",
        help="""Path of a configuration file (Python, `c = get_config()`).

        Empty: only the command line counts.
        Example: `/etc/jupyterhub-gpu-reclaim/agent.py`.
        """,
    ).tag(config=True)

    listen = Unicode(
        "unix:/run/jupyterhub-gpu-reclaim/agent.sock",
        help="""Where the service reaches the agent.

        `unix:PATH` makes a socket of mode 0600, for a service of root on this machine.
        `ADDRESS:PORT` listens on TCP; any address but loopback needs `certificate`.
        Example: `127.0.0.1:8765` or `[::1]:8765`.
        """,
    ).tag(config=True)

    token_file = Unicode(
        str(_HOME / "agent.token"),
        help="""File with the token that every call must carry.

        Made with a random token, mode 0600, when it is not there. Whoever holds the
        token can end every session of this machine and read their logins.
        """,
    ).tag(config=True)

    certificate = Unicode(
        "",
        help="""PEM file with the TLS certificate (and its chain) for TCP.

        Empty: no TLS, which is refused for any address but loopback.
        """,
    ).tag(config=True)

    private_key = Unicode(
        "", help="PEM file with the certificate's key. Empty: it is in `certificate`."
    ).tag(config=True)

    state_dir = Unicode(
        str(_HOME / "agent"),
        help="""Folder for the agent's own records, mode 0700; must survive a reboot.

        It is small. At most 60 characters, because sockets stand in it.
        """,
    ).tag(config=True)

    store_dir = Unicode(
        str(_HOME / "store"),
        help="""Folder for saved sessions, mode 0700.

        Needs room for about half of the memory of every suspended session. What is in
        it is as secret as the sessions' memory: it holds their logins.
        """,
    ).tag(config=True)

    criu_dir = Unicode(
        str(criu.FOLDER),
        help="""Folder of the private CRIU (`jupyterhub-gpu-reclaim criu install`).

        Where it holds none, the system's CRIU is used if it is new enough.
        """,
    ).tag(config=True)

    placement = Enum(
        ["local"],
        "local",
        help="""Where sessions run: `local` is in namespaces on this machine.""",
    ).tag(config=True)

    realm = Unicode(
        "",
        help="""Which Hub's sessions this agent looks after, by name.

        Only sessions that were started with the same `ReclaimLocalSpawner.realm` are
        seen. Needed only where two Hubs share one machine. Example: `teaching`.
        """,
    ).tag(config=True)

    log_level = Enum(
        ["DEBUG", "INFO", "WARNING", "ERROR"],
        "INFO",
        help="The lowest level that is logged, on the standard error output.",
    ).tag(config=True)

    sample_seconds = Seconds(
        5.0,
        min=0.1,
        help="""Seconds that a session's server has to tell about its kernels.

        One that takes longer is reported as not known, and so is never suspended.
        """,
    ).tag(config=True)

    check_seconds = Seconds(
        60.0,
        min=1.0,
        help="Seconds that looking at processes, files and sockets may take.",
    ).tag(config=True)

    dump_seconds = Seconds(
        1800.0,
        min=1.0,
        help="""Seconds that saving a session's memory may take; it stands still then.

        When the time is up the session goes on, and nothing is saved.
        """,
    ).tag(config=True)

    archive_seconds = Seconds(
        600.0,
        min=1.0,
        help="Seconds that saving or putting back temporary files may take.",
    ).tag(config=True)

    commit_seconds = Seconds(
        600.0,
        min=1.0,
        help="Seconds that the store has to make a checkpoint durable.",
    ).tag(config=True)

    restore_seconds = Seconds(
        1800.0, min=1.0, help="Seconds that bringing the memory back may take."
    ).tag(config=True)

    answer_seconds = Seconds(
        60.0,
        min=1.0,
        help="""Seconds that a restored server has until it answers.

        After that the restore has failed; the checkpoint is kept.
        """,
    ).tag(config=True)

    end_seconds = Seconds(
        30.0, min=1.0, help="Seconds that killed processes have to be gone."
    ).tag(config=True)

    stop_seconds = Seconds(
        60.0,
        min=1.0,
        help="""Seconds that the agent waits at its own end for what is under way.

        Captures are called off, so their sessions go on; restores are finished. What
        is not done by then is settled at the next start.
        """,
    ).tag(config=True)

    max_body_bytes = Integer(
        routes.MAX_BODY_BYTES,
        min=1024,
        help="Largest body of a call, in bytes. The agent's calls are all small.",
    ).tag(config=True)

    @validate("state_dir")
    def _short_enough(self, proposal: dict[str, Any]) -> str:
        value = str(proposal["value"])
        if len(os.fsencode(value)) > _LONGEST_STATE_DIR:
            raise TraitError(
                f"state_dir is longer than {_LONGEST_STATE_DIR} bytes, too long for"
                f" the sockets in it: {value}"
            )
        return value

    @catch_config_error
    def initialize(self, argv: list[str] | None = None) -> None:
        """Read the command line, then the file, then the command line again."""
        self.parse_command_line(argv)
        if self.config_file:
            line = self.cli_config
            path = Path(self.config_file)
            if not path.is_file():
                raise TraitError(f"there is no configuration file {path}")
            self.load_config_file(path.name, str(path.parent.absolute()))
            self.update_config(line)

    def start(self) -> None:
        """Run until a signal ends it."""
        observability.set_up(self.log_level)
        try:
            asyncio.run(self._main())
        except _CannotStartError as error:
            sys.exit(f"{self.name}: {error}")

    async def _main(self) -> None:
        if os.geteuid() != 0:
            raise _CannotStartError("it must run as root: it stops and moves sessions")
        state = _folder(Path(self.state_dir))
        with _only_one(state):
            parts = self._parts(state)
            operations = Operations()
            sampler = Sampler(parts.clock, answer_seconds=self.sample_seconds)
            node = LocalNode(parts, operations, Watcher(parts.placements, sampler))
            await asyncio.to_thread(recovery.recover, parts)
            server = self._server(node)
            _log.info("- listening on %s, version %s", self.listen, __version__)
            try:
                await _signalled()
            finally:
                server.stop()
                late = await operations.finish(self.stop_seconds)
                for incarnation in late:
                    _log.warning("- left for the next start: %s", incarnation)
                await server.close_all_connections()
                sampler.close()
                parts.client.close()
                self._remove_socket()

    def _parts(self, state: Path) -> Parts:
        clock = SystemClock()
        work = _folder(state / "work")
        for rest in work.iterdir():
            _remove(rest)
        return Parts(
            placements=LocalPlacements(self.realm),
            records=Records(_folder(state / "records")),
            store=Repository(FolderBackend(_folder(Path(self.store_dir))), clock=clock),
            tool=Tool(Path(self.criu_dir), clock),
            ports=Reservations(state),
            client=jupyter.make_client(),
            clock=clock,
            limits=Limits(
                check=self.check_seconds,
                dump=self.dump_seconds,
                archive=self.archive_seconds,
                commit=self.commit_seconds,
                restore=self.restore_seconds,
                answer=self.answer_seconds,
                end=self.end_seconds,
            ),
            work=work,
        )

    def _server(self, node: routes.Node) -> HTTPServer:
        application = routes.make_application(node, read_token(Path(self.token_file)))
        server = HTTPServer(
            application, ssl_options=self._tls(), max_body_size=self.max_body_bytes
        )
        try:
            if self.listen.startswith(_UNIX):
                path = Path(self.listen.removeprefix(_UNIX))
                _folder(path.parent)
                server.add_socket(bind_unix_socket(str(path), mode=0o600))
            else:
                host, port = _address(self.listen)
                self._refuse_open(host)
                server.add_sockets(bind_sockets(port, host))
        except (OSError, ValueError) as error:
            raise _CannotStartError(
                f"cannot listen on {self.listen}: {error}"
            ) from None
        return server

    def _refuse_open(self, host: str) -> None:
        try:
            loopback = ipaddress.ip_address(host).is_loopback
        except ValueError:
            loopback = host == "localhost"
        if not loopback and not self.certificate:
            raise _CannotStartError(
                f"listening on {host} needs TLS: set certificate and private_key, or"
                " listen on 127.0.0.1 or a unix: socket"
            )

    def _tls(self) -> ssl.SSLContext | None:
        if not self.certificate:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.certificate, self.private_key or None)
        except (OSError, ssl.SSLError) as error:
            raise _CannotStartError(f"certificate or private_key: {error}") from None
        return context

    def _remove_socket(self) -> None:
        if self.listen.startswith(_UNIX):
            Path(self.listen.removeprefix(_UNIX)).unlink(missing_ok=True)


class _CannotStartError(Exception):
    """The agent cannot start; the message is the sentence to print."""


def read_token(path: Path) -> str:
    """The token, made at the first start.

    Raises:
        _CannotStartError: the file is not ours alone, is empty or cannot be read.
    """
    try:
        if not path.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_durably(path, secrets.token_urlsafe(32).encode() + b"\n")
        status = path.stat()
        if status.st_uid != os.geteuid() or status.st_mode & 0o007:
            raise _CannotStartError(f"{path} must belong to root, closed to others")
        token = path.read_text().strip()
    except (OSError, ValueError) as error:
        raise _CannotStartError(f"token_file {path}: {error}") from None
    if len(token) < 16:
        raise _CannotStartError(f"{path} holds fewer than 16 characters")
    return token


def _folder(path: Path) -> Path:
    """That folder, made with mode 0700 where it is missing."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise _CannotStartError(f"{path}: {error.strerror}") from None
    return path


def _remove(path: Path) -> None:
    """Remove a work folder that a former agent left: one level of files."""
    with contextlib.suppress(OSError):
        for entry in path.iterdir():
            entry.unlink()
        path.rmdir()


@contextlib.contextmanager
def _only_one(state: Path) -> Any:
    """Hold the state folder's lock: two agents would undo each other's work."""
    descriptor = os.open(state / "agent.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _CannotStartError(f"another agent runs on {state}") from None
    else:
        yield
    finally:
        os.close(descriptor)


def _address(text: str) -> tuple[str, int]:
    """``address:port`` taken apart; ValueError when it is none."""
    parsed = urlsplit(f"//{text}")
    if not parsed.hostname or parsed.port is None:
        raise ValueError("expected unix:PATH or ADDRESS:PORT")
    return parsed.hostname, parsed.port


async def _signalled() -> None:
    """Wait for SIGTERM or SIGINT."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    await ended.wait()


def main() -> None:
    """The program's entry point."""
    AgentApp.launch_instance()
