"""The agent's settings of the store: where, behind which key, and how.

``setup.store`` opens what they describe. The command line reads the same file, so that
it opens the same store. Nothing here accesses a disk or a network.
"""

from __future__ import annotations

from typing import Any

from traitlets import Bool, Dict, Enum, Float, Integer, TraitError, Unicode, validate
from traitlets.config import Configurable

from jupyterhub_gpu_reclaim.common.traits import Seconds

HOME = "/var/lib/jupyterhub-gpu-reclaim"


class StoreSettings(Configurable):
    """The store's part of ``c.AgentApp``."""

    store_url = Unicode(
        f"{HOME}/store",
        help="""Where suspended sessions are kept: a folder's path or an object store.

        A folder (mode 0700) of this machine or a mounted volume: `/path`. An object
        store: `s3://bucket/prefix`, `gs://bucket/prefix` or `az://container/prefix`.
        It needs room for about half of the memory of every suspended session. What is
        in it is encrypted; who may write to it can delete suspended sessions.
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
        the store is opened and by each worker, and stands in no log. Empty: none.
        """,
    ).tag(config=True)

    store_patience_seconds = Seconds(
        60.0,
        min=1.0,
        help="""Seconds for which a request to an object store is repeated.

        A whole call may take twice that. Longer sits out longer outages, while a
        session that is being suspended stands still.
        """,
    ).tag(config=True)

    store_local_dir = Unicode(
        "",
        help="""Folder of this machine that takes suspended sessions first. Empty: none.

        Best on a fast disk: the session stands still only while its memory goes
        there, and comes back from there as long as its copy is kept. What a commit
        then means is `commit_means`.
        """,
    ).tag(config=True)

    store_local_gb = Float(
        0.0,
        min=0.0,
        help="""Gigabytes (10^9 bytes) of copies that `store_local_dir` may hold.

        Above it copies of the least recently suspended sessions are dropped, as soon
        as the store has them whole; those come back from the store, more slowly. What
        is not uploaded yet stays, whatever this says. 0: no limit.
        """,
    ).tag(config=True)

    commit_means = Enum(
        ["local", "remote"],
        "remote",
        help="""With `store_local_dir`: when a session counts as saved, and is ended.

        `remote`: when the store behind has it whole. The session stands still until
        it is uploaded, and its work survives the loss of this machine. `local`: as
        soon as the folder of this machine has it. That is fast, and the GPU is free
        sooner; the upload follows in the background, also after days in which the store
        behind was away, and **whoever loses this machine or its disk before that has
        lost the suspended session**. Only what the folder still holds of the session's
        last save is not written again. Refused where `placement` is `kubernetes`: a
        session may come back on another node.
        """,
    ).tag(config=True)

    master_key_file = Unicode(
        "",
        help="""File of the master keys: a line `name key` for each, the newest last.

        A key is 32 bytes as base64 or hexadecimal. The file is made with a random key,
        mode 0600, when it is not there. **Who loses it has lost every suspended
        session; who has it and the store can read them all.** Keep a copy elsewhere.
        Empty: `master.key` beside `state_dir`, unless another place of keys is set.
        """,
    ).tag(config=True)

    master_key_variable = Unicode(
        "",
        help="""Name of an environment variable with such lines, instead of a file.

        It is never made. The environment of a program of root is as secret as a file.
        """,
    ).tag(config=True)

    master_key_dir = Unicode(
        "",
        help="""Folder with a file for each master key, such as a mounted Secret.

        A file's name is its key's; the newest is the last by name. It is never made.
        Instead of `master_key_file`.
        """,
    ).tag(config=True)

    master_key_service = Unicode(
        "",
        help="""Python class that wraps keys with a key service: `package.module:Class`.

        It has the methods of `store.keys.Wrapper` and is made without arguments. The
        key service is asked at every suspend and every resume. Instead of
        `master_key_file`.
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

    store_workers = Integer(
        None,
        min=0,
        max=64,
        allow_none=True,
        help="""Processes that compress and encrypt for one suspend or resume.

        None: one for each core, at most 16. Fewer leave more of the machine to other
        sessions, and a session stands still for longer. 0: none, the agent's own
        threads do it, on about one core.
        """,
    ).tag(config=True)

    store_read_back = Bool(
        True,
        help="""Whether everything is read back before a session counts as saved.

        It finds out a disk or a memory that writes wrongly while the session can still
        go on. False: faster by about a fifth, and such damage is found at the resume.
        """,
    ).tag(config=True)

    @validate("store_url", "store_local_dir")
    def _not_relative(self, proposal: dict[str, Any]) -> str:
        value = str(proposal["value"])
        name = proposal["trait"].name
        if name == "store_local_dir" and value and not value.startswith("/"):
            raise TraitError(f"store_local_dir is a folder's whole path, not {value!r}")
        if name == "store_url" and "://" not in value and not value.startswith("/"):
            raise TraitError(
                "store_url is a folder's whole path or begins with s3://, gs:// or"
                f" az://, not {value!r}"
            )
        return value
