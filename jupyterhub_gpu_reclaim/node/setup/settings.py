"""The agent's settings: every trait, with what it does and what it costs.

It reads the command line and the configuration file and refuses what makes no sense; it
starts nothing.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from traitlets import Enum, Integer, List, TraitError, Unicode, validate
from traitlets.config import Application, catch_config_error

from jupyterhub_gpu_reclaim import __version__
from jupyterhub_gpu_reclaim.checkpoint.criu import binary
from jupyterhub_gpu_reclaim.common.errors import BadRequest
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.traits import Seconds
from jupyterhub_gpu_reclaim.node.compat.rights import REACHING
from jupyterhub_gpu_reclaim.node.dependencies import Limits
from jupyterhub_gpu_reclaim.node.http import routes
from jupyterhub_gpu_reclaim.node.setup.store_settings import HOME, StoreSettings

_HOME = Path(HOME)
#: A Unix socket's path, CRIU's below the work folder included, fits in 108 bytes.
_LONGEST_STATE_DIR = 60


class AgentSettings(StoreSettings, Application):
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

    criu_dir = Unicode(
        str(binary.FOLDER),
        help="""Folder of the private CRIU (`jupyterhub-gpu-reclaim criu install`).

        Where it holds none, the system's CRIU is used if it is new enough.
        """,
    ).tag(config=True)

    placement = Enum(
        ["local", "kubernetes"],
        "local",
        help="""Where sessions run.

        `local`: in namespaces on this machine, started by `ReclaimLocalSpawner`.
        `kubernetes`: in the pods of this node, started by `ReclaimKubeSpawner`; the
        agent needs the host's process ids (`hostPID`) and a service that names the pod
        of each session. Example: `kubernetes`.
        """,
    ).tag(config=True)

    realm = Unicode(
        "",
        help="""Which Hub's sessions this agent looks after, by name.

        Only sessions that were started with the same `realm` of their spawner are
        seen. Needed only where two Hubs share one machine. Example: `teaching`.
        """,
    ).tag(config=True)

    trusted_capabilities = List(
        Unicode(),
        help="""Capabilities that a session in a container may have all the same.

        By default a session whose programs may use one of DAC_READ_SEARCH,
        SYS_MODULE, SYS_RAWIO, SYS_PTRACE, SYS_ADMIN, SYS_BOOT, PERFMON and BPF is
        neither saved nor brought back: with these they could look at the agent's own
        processes. Name here those whose users you trust with the node. Empty: none.
        Sessions on the agent's own machine (`placement = "local"`) are not judged.
        Example: `["SYS_PTRACE"]`, for py-spy and gdb.
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

        When the time is up the session goes on, and nothing is suspended.
        """,
    ).tag(config=True)

    gpu_lock_seconds = Seconds(
        30.0,
        min=0.1,
        help="""Seconds that a GPU may take to finish the work that it has in hand.

        A session whose GPU takes longer is not saved, and goes on. Longer saves
        sessions in the middle of large kernels; their notebooks wait meanwhile.
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
        help="""Seconds that the store has to make a checkpoint durable.

        Twice that for the whole of the commit, in which the session stands still; with
        `commit_means = "remote"` the upload has to fit in.
        """,
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
        is not done by then is settled at the next start. The agent is gone 10 s later
        at the latest, also where a store does not answer: leave it that much more in
        TimeoutStopSec or terminationGracePeriodSeconds.
        """,
    ).tag(config=True)

    thaw_after_seconds = Seconds(
        600.0,
        help="""Seconds without an agent after which frozen sessions are let go on.

        A captured session stands still until the agent ends or thaws it. Should the
        agent never come back, a small process that outlives it lets the session go on,
        as it was; its checkpoint is dropped by the next agent. 0: it stays frozen.
        Longer leaves more time to repair an agent in the middle of many suspends.
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

    @validate("trusted_capabilities")
    def _known(self, proposal: dict[str, Any]) -> list[str]:
        names = [str(name).removeprefix("CAP_") for name in proposal["value"]]
        strange = [name for name in names if name not in REACHING]
        if strange:
            raise TraitError(
                f"trusted_capabilities holds {strange[0]}, which is none of"
                f" {', '.join(REACHING)}"
            )
        return names

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

    def check_together(self) -> None:
        """Whether the settings fit each other.

        Raises:
            BadRequest: they make no sense together.
        """
        if self.placement == "kubernetes" and self.commit_means == "local":
            what = (
                'commit_means = "local" does not go with placement = "kubernetes":'
                " a session may come back on another node, and its checkpoint would be"
                ' on this one only. Set commit_means = "remote".'
            )
            raise BadRequest(Reason.INVALID, what=what)

    def limits(self) -> Limits:
        """The time limits of the steps, as the operations take them."""
        return Limits(
            check=self.check_seconds,
            dump=self.dump_seconds,
            archive=self.archive_seconds,
            commit=self.commit_seconds,
            restore=self.restore_seconds,
            answer=self.answer_seconds,
            end=self.end_seconds,
            gpu_lock=self.gpu_lock_seconds,
        )
