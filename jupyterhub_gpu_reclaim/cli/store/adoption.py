"""``store adopt``: accepts a store that was changed on purpose.

The agent, and by it the service and all other agents, mean the store at the place of
the settings from then on. Sessions suspended in the former one are not found any more.
"""

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
from jupyterhub_gpu_reclaim.node.operations.known_store import KnownStore
from jupyterhub_gpu_reclaim.node.setup.store import (
    key_file,
    keys_of,
    make_key,
    place_of,
)
from jupyterhub_gpu_reclaim.store.backends.identified import IdentityCheck
from jupyterhub_gpu_reclaim.store.format import layout
from jupyterhub_gpu_reclaim.store.format.identity import new_id

if TYPE_CHECKING:
    import argparse


def adopt(args: argparse.Namespace) -> int:
    """Take the store that is there, or begin a new one where that is said."""
    if args.store:
        refuse("Set the place in the agent's configuration file; --store is no help.")
    settings = settings_of(args)
    state = Path(settings.state_dir)
    if not state.is_dir():
        refuse(f"There is no state folder {state}: the agent has not run here.")
    check_folder(settings, may_be_new=args.empty)
    place = place_of(settings)
    if not place.list(layout.MANIFESTS) and args.empty:
        make_key(key_file(settings, state), SystemClock())
    known = KnownStore(state)
    check = IdentityCheck(place, keys_of(settings, state), known)
    found = check.found()
    if found is None:
        if not place.list(layout.MANIFESTS) and not args.empty:
            where = settings.store_url
            refuse(
                f"Nothing is at {where}. Is it mounted? If a new store is to begin"
                " there, say --empty."
            )
        check.make(new_id())
        found = check.found()
    if found is None:
        refuse(f"{settings.store_url} is no store.")
    known.adopt(found.id, SystemClock().now())
    if args.json:
        print_json({"store": found.id})
    else:
        say(f"The store is {found.id} from now on. The agent takes it by itself.")
    return 0
