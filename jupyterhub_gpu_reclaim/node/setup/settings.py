"""The agent's settings: every trait, with its effect and its cost; starts nothing."""

from __future__ import annotations

import logging
from pathlib import Path

from traitlets import Bool, Dict, Enum, Integer, List, TraitError, Unicode, default
from traitlets.config import Application, Configurable, catch_config_error

from jupyterhub_gpu_reclaim import __version__
from jupyterhub_gpu_reclaim.checkpoint.criu import binary
from jupyterhub_gpu_reclaim.common.traits import Amount, Seconds
from jupyterhub_gpu_reclaim.node import state_folder
from jupyterhub_gpu_reclaim.node.operations.operations import TimeLimits
from jupyterhub_gpu_reclaim.node.requirements import REACHING
from jupyterhub_gpu_reclaim.node.sessions import docker_placements


class StoreSettings(Configurable):
    store_url = Unicode(
        f"{state_folder.HOME}/store",
        help="""Where suspended sessions are kept: a folder's path or an object store.

        A folder (mode 0700) of this machine or a mounted volume: `/path`. An object
        store: `s3://bucket/prefix`, `gs://bucket/prefix` or `az://container/prefix`.
        It needs room for about half of the memory of every suspended session. What is
        in it is encrypted; anyone who may write to it can delete suspended sessions.
        """,
    ).tag(config=True)

    store_options = Dict(
        value_trait=Unicode(),
        key_trait=Unicode(),
        help="""Options of an object store, by obstore's names; no secrets.

        For example `{"region": "eu-central-1"}`, or for a store of your own
        `{"endpoint": "https://minio.example.org", "region": "us-east-1"}`;
        `root_certificate` is the path of a PEM file, `proxy_url` a proxy. Logins come
        from the environment (`AWS_ACCESS_KEY_ID`, …), from the machine's own identity
        or from `store_options_file`.
        """,
    ).tag(config=True)

    store_options_file = Unicode(
        "",
        help="""JSON file, mode 0600, with the secret options of an object store.

        For example `{"access_key_id": "…", "secret_access_key": "…"}`. It is read when
        the store is opened and by each worker, and is never logged. Empty: none. Set
        it where the machine has no identity of its own there.
        """,
    ).tag(config=True)

    store_reserve_gb = Amount(
        1.0,
        min=0.0,
        help="""Gigabytes (10^9 bytes) that stay free where the store's folder is.

        A suspend that would need them is called off, and its session goes on. Never
        more than a twentieth of the file system. More where others write there, too;
        an object store has no such limit. 0: until the disk is full.
        """,
    ).tag(config=True)

    master_key_file = Unicode(
        "",
        help="""File of the master keys: a line `name key` for each, the newest last.

        A key is 32 bytes as base64 or hexadecimal. The agent's first start makes the
        file with a random key, mode 0600, and the line `store-id` with the id of the
        store that it begins. **If you lose it, you lose every suspended session; anyone
        who has it and the store can read them all.** Keep a copy elsewhere. Empty:
        `master.key` beside the agent's state folder, unless another place of keys is
        set.
        """,
    ).tag(config=True)

    master_key_dir = Unicode(
        "",
        help="""Folder with a file for each master key, such as a mounted Secret.

        A file's name is its key's; the newest is the last by name. The file `store-id`
        has the store's id. It is never made; `store init` begins the store.
        Set it on Kubernetes, instead of `master_key_file`.
        """,
    ).tag(config=True)

    master_key_service = Unicode(
        "",
        help="""Python class that wraps keys with a key service: `package.module:Class`.

        It has the methods of `store.format.keys.Wrapper` and is made without arguments;
        its attribute `store_id` is the store's id.
        The key service is asked at every suspend and every resume. Set it, instead of
        `master_key_file`, where no key may lie on a disk.
        """,
    ).tag(config=True)

    compression = Enum(
        ["lz4", "zstd", "none"],
        "lz4",
        help="""How memory is compressed, where it can be.

        `lz4` costs little and keeps a fast disk busy. `zstd` makes it smaller by about
        a third at several times the cost: for slow or expensive storage. `none` only
        leaves out zeros. What cannot be compressed is found out cheaply in any case.
        """,
    ).tag(config=True)


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
        state_folder.AGENT_FILE,
        help="""Path of the configuration file (Python, `c = get_config()`).

        The default is read if it is there; another one must be. The commands `store`
        read the same file. Empty: only the command line counts.
        """,
    ).tag(config=True)

    listen = Unicode(
        "unix:/run/jupyterhub-gpu-reclaim/agent.sock",
        help="""Where the service reaches the agent.

        `unix:PATH` makes a socket of mode 0600, for a service of root on this machine.
        `ADDRESS:PORT` listens on TCP, by TLS alone: it needs `certificate`.
        Example: `10.0.0.5:8765` or `[::]:8765`.
        """,
    ).tag(config=True)

    token_file = Unicode(
        f"{state_folder.HOME}/agent.token",
        help="""File with the token that every call must carry.

        Made with a random token, mode 0600, when it is not there. Whoever holds the
        token can end every session of this machine and read their logins. Set it where
        a Secret has it.
        """,
    ).tag(config=True)

    certificate = Unicode(
        "",
        help="""PEM file with the TLS certificate (and its chain) for TCP.

        Needed where `listen` is TCP; a `unix:` socket has none.
        """,
    ).tag(config=True)

    private_key = Unicode(
        "",
        help="PEM file with the certificate's key. Empty: it is in `certificate`. Set"
        " it where they are two files, as in a Secret.",
    ).tag(config=True)

    criu_dir = Unicode(
        str(binary.FOLDER),
        help="""Folder of CRIU, as `jupyterhub-gpu-reclaim criu install` makes it.

        Set it where you have installed it elsewhere (`criu install --to`).
        """,
    ).tag(config=True)

    placement = Enum(
        ["local", "docker", "kubernetes"],
        "local",
        help="""Where sessions run.

        `local`: in namespaces on this machine, started by `ReclaimLocalSpawner`.
        `docker`: in containers of this machine's Docker, started by
        `ReclaimDockerSpawner`; Docker says whose each is (`docker_socket`).
        `kubernetes`: in the pods of this node, started by `ReclaimKubeSpawner`; the
        agent needs the host's process ids (`hostPID`) and a service that names the pod
        of each session. Example: `kubernetes`.
        """,
    ).tag(config=True)

    docker_socket = Unicode(
        docker_placements.SOCKET,
        help="""Socket of Docker's API, with `placement = "docker"`.

        The agent asks it which container was made for which session. Set it where
        Docker's is elsewhere. Example: `/var/run/docker.sock`.
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
        Enum(REACHING),
        help="""Capabilities that a session in a container may have all the same.

        By default a session whose programs may use one of DAC_READ_SEARCH,
        SYS_MODULE, SYS_RAWIO, SYS_PTRACE, SYS_ADMIN, SYS_BOOT, PERFMON and BPF is
        neither suspended nor resumed: with these they could look at the agent's own
        processes. Name here those whose users you trust with the node. Empty: none.
        Sessions on the agent's own machine (`placement = "local"`) are not judged.
        Example: `["SYS_PTRACE"]`, for py-spy and gdb.
        """,
    ).tag(config=True)

    dump_seconds = Seconds(
        1800.0,
        min=1.0,
        help="""Seconds that saving a session's memory may take, or bringing it back.

        When the time is up the session goes on, and nothing is suspended; or the
        resume has failed, and its checkpoint is kept. The store has a third of it, 600
        at least, to make a checkpoint durable. Longer for hundreds of gigabytes on a
        slow disk, or a slow way to an object store.
        """,
    ).tag(config=True)

    save_point_file_bytes = Integer(
        256 << 20,
        min=0,
        help="""How much a save point keeps of a session's files, in bytes.

        A save point is memory, which fits the files of its moment alone. So it keeps
        what the session's programs have open for writing, or mapped, as it was; the
        smallest first, up to this limit. A file that is not kept has to be as it was
        when the session goes back.
        """,
    ).tag(config=True)

    raise_config_file_errors = Bool(default_value=True)  # half read, it would count

    @default("log_level")
    def _default_log_level(self) -> int:
        return logging.INFO

    @catch_config_error
    def initialize(self, argv: list[str] | None = None) -> None:
        # The command line twice: it names the file, and overrides it.
        self.parse_command_line(argv)
        line = self.cli_config
        path = Path(self.config_file)
        usual = self.config_file == state_folder.AGENT_FILE
        named = not usual or "config_file" in line.AgentApp
        if self.config_file and (named or path.exists()):
            if not path.is_file():
                raise TraitError(f"there is no configuration file {path}")
            try:
                self.load_config_file(path.name, str(path.parent.absolute()))
            except Exception as error:  # noqa: BLE001 - whatever is in it
                what = f"{type(error).__name__}: {error}"
                raise TraitError(f"the configuration file {path}: {what}") from None
            self.update_config(line)

    def limits(self) -> TimeLimits:
        return TimeLimits(
            dump=self.dump_seconds,
            commit=max(600.0, self.dump_seconds / 3),
            restore=self.dump_seconds,
        )
