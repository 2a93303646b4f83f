"""``store drill``: bring a saved session back in an empty place, and throw it away.

``node/workflows/drill.py`` says what that shows, what it does not, and what it leaves
alone.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.checkpoint.criu import binary
from jupyterhub_gpu_reclaim.cli.output import print_json, progress, say
from jupyterhub_gpu_reclaim.cli.store.repository import open_store, refuse, settings_of
from jupyterhub_gpu_reclaim.common import metrics_file, text
from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from jupyterhub_gpu_reclaim.node.workflows import drill as workflow

if TYPE_CHECKING:
    import argparse

    from jupyterhub_gpu_reclaim.cli.store.repository import OpenStore


def drill(args: argparse.Namespace) -> int:
    """Try one checkpoint; exit code 1 if it does not come back.

    Raises:
        ReclaimError: it does not; the metrics say so, too.
    """
    if os.geteuid() != 0:
        refuse("A drill makes namespaces and runs CRIU: run it as root.")
    store = open_store(args)
    checkpoint = args.id or _newest(store)
    folder = Path(args.criu_dir or settings_of(args).criu_dir).absolute()
    criu = binary.locate(folder)
    begun = time.monotonic()
    try:
        with progress(f"bringing {checkpoint} back"):
            done = workflow.run(criu, store.repository, checkpoint)
    except ReclaimError:
        _note(args, 0, time.monotonic() - begun, store.clock.now(), well=False)
        raise
    _note(args, done.bytes, done.seconds, store.clock.now(), well=not done.unproven)
    if args.json:
        print_json(done)
        return 0
    took = text.duration(done.seconds)
    if done.unproven:
        say(f"{checkpoint} was read whole in {took}, {text.size(done.bytes)}")
        say(f"It was not brought back: {done.unproven}.")
        return 0
    say(f"{checkpoint} came back in {took}: {done.processes} processes,")
    say(f"{text.size(done.bytes)} of memory, {text.size(done.same)} of it unchanged")
    return 0


def _newest(store: OpenStore) -> str:
    infos = store.repository.list()
    if not infos:
        refuse("There is no checkpoint in this store.")
    return infos[-1].id


def _note(
    args: argparse.Namespace, restored: int, seconds: float, now: float, *, well: bool
) -> None:
    if args.metrics_file:
        metrics_file.drilled(args.metrics_file, restored, seconds, well=well, now=now)
