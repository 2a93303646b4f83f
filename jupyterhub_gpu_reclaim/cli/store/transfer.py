"""``store export`` and ``store import``: one checkpoint in one file.

The file holds the memory of a person's programs, encrypted; only its name and its size
are readable.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.cli.output import print_json, progress, say
from jupyterhub_gpu_reclaim.cli.passphrases import read_passphrase
from jupyterhub_gpu_reclaim.cli.store.repository import open_store, refuse
from jupyterhub_gpu_reclaim.common import text
from jupyterhub_gpu_reclaim.store.format.keys import Passphrase, load_keys
from jupyterhub_gpu_reclaim.store.transfer.export import (
    export_checkpoint,
    import_checkpoint,
)

if TYPE_CHECKING:
    import argparse

    from jupyterhub_gpu_reclaim.store.format.keys import Wrapper


def export(args: argparse.Namespace) -> int:
    """Write a checkpoint with everything it needs into a file."""
    other = _other_keys(args, twice=True)
    store = open_store(args)
    path = Path(args.file).absolute()
    with progress(f"writing {path.name}") as bar:
        size = export_checkpoint(
            store.backend, store.repository, args.id, path, wraps=other, progress=bar
        )
    if args.json:
        print_json({"id": args.id, "file": str(path), "bytes": size})
    else:
        say(f"{text.size(size)} written to {path}")
    return 0


def import_(args: argparse.Namespace) -> int:
    """Check a file completely, then put it into the store."""
    other = _other_keys(args)
    try:
        descriptor = os.open(args.file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                refuse(f"{args.file} is no file.")
            store = open_store(args, may_be_new=True)
            with progress(f"checking {args.file}") as bar:
                info = import_checkpoint(
                    file,
                    store.backend,
                    keys=store.keys,
                    opens=other or store.keys,
                    clock=store.clock,
                    progress=bar,
                )
    except OSError as error:
        refuse(f"{args.file} cannot be read: {(error.strerror or '').lower()}.")
    if args.json:
        print_json(info)
    else:
        say(f"{info.id} of {info.key} is in the store")
    return 0


def _other_keys(args: argparse.Namespace, *, twice: bool = False) -> Wrapper | None:
    if args.with_key_file:
        return load_keys(file=Path(args.with_key_file))
    place = args.passphrase_file
    if not place:
        return None
    return Passphrase(read_passphrase(place, twice=twice))
