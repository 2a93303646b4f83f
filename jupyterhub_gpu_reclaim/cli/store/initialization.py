"""``store init``: begins the store, if the agent's first start does not do it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.cli.output import print_json, say
from jupyterhub_gpu_reclaim.cli.store.repository import (
    check_folder,
    refuse,
    settings_of,
)
from jupyterhub_gpu_reclaim.common.clock import SystemClock
from jupyterhub_gpu_reclaim.node.setup import store_init
from jupyterhub_gpu_reclaim.node.setup.store import key_file, keys_of, place_of
from jupyterhub_gpu_reclaim.store.backends.identified import IdentityCheck
from jupyterhub_gpu_reclaim.store.format.identity import new_id
from jupyterhub_gpu_reclaim.store.format.keys import STORE_ID

if TYPE_CHECKING:
    import argparse


def init(args: argparse.Namespace) -> int:
    """Write an id into an empty place and beside the master key; repeatable."""
    settings = settings_of(args)
    state = Path(settings.state_dir)
    check_folder(settings, may_be_new=True)
    where, place = settings.store_url, place_of(settings)
    file = key_file(settings, state)
    if file is not None:
        now = SystemClock().now()
        store = store_init.begin(place, where, file, now, new=args.new)
    else:
        keys = keys_of(settings, state)
        store = keys.store_id
        if args.new or not store:
            refuse(
                f"This master key is kept where nothing can be written. Give it a new"
                f" {STORE_ID} there, {new_id()} for example, and repeat this without"
                " --new."
            )
        IdentityCheck(place, keys, where).begin()
    if args.json:
        print_json({"store": store, "place": where})
    else:
        say(f"The store {store} is at {where}.")
        if file is not None:
            say(f"Keep a copy of its master key elsewhere: {file}")
    return 0
