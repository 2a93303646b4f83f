"""``store init``, ``verify``, ``rekey`` and ``rm``: begin and keep one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.cli.output import print_json, print_table, progress, say
from jupyterhub_gpu_reclaim.cli.store.repository import (
    check_folder,
    open_store,
    refuse,
    settings_of,
)
from jupyterhub_gpu_reclaim.common import text
from jupyterhub_gpu_reclaim.common.clock import SystemClock
from jupyterhub_gpu_reclaim.common.errors import NotFound, Refused, StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.node import state_folder
from jupyterhub_gpu_reclaim.node.setup import store_init
from jupyterhub_gpu_reclaim.node.setup.store import key_file, keys_of, place_of
from jupyterhub_gpu_reclaim.store.backends.identified import IdentifiedBackend
from jupyterhub_gpu_reclaim.store.format.identity import new_id
from jupyterhub_gpu_reclaim.store.format.keys import STORE_ID

if TYPE_CHECKING:
    import argparse

    from jupyterhub_gpu_reclaim.store.checkpoint import Damage
    from jupyterhub_gpu_reclaim.store.repository import Repository


def verify(args: argparse.Namespace) -> int:
    store = open_store(args)
    _refuse_absent(store, args.ids)
    ids = args.ids or store.ids()
    found: list[Damage] = []
    for number, id_ in enumerate(ids, 1):
        with progress(f"{id_} ({number} of {len(ids)})") as bar:
            found += store.verify(id_, bar)
    bad_ids = {each.checkpoint for each in found}
    if args.json:
        damage = [each._asdict() for each in found]
        print_json({"verified": ids, "damage": damage})
        return 1 if found else 0
    if found:
        print_table(("CHECKPOINT", "FILE", "OBJECT", "WHY", "CODE"), found)
    locked = {each.checkpoint for each in found if each.locked}
    counts = f"{len(ids) - len(locked)} verified, {len(bad_ids - locked)} damaged"
    say(f"{counts}, {len(locked)} without their master key" if locked else counts)
    return 1 if found else 0


def rekey(args: argparse.Namespace) -> int:
    """Wrap keys under the newest master key; one failure does not stop the others."""
    store = open_store(args)
    ids = args.ids or store.ids()
    wrapped, failed = [], {}
    with progress("wrapping keys") as bar:
        for number, id_ in enumerate(ids, 1):
            try:
                if store.rekey(id_):
                    wrapped.append(id_)
            except (StoreError, NotFound) as error:
                failed[id_] = error.message
            bar(number, len(ids))
    if args.json:
        print_json({"rewrapped": wrapped, "failed": failed})
    else:
        for id_, why in failed.items():
            say(f"{id_}: {why}")
        say(f"{len(wrapped)} of {len(ids)} rewrapped, {len(failed)} failed")
    return 1 if failed else 0


def rm(args: argparse.Namespace) -> int:
    """Delete checkpoints; all or, if one of them may not go, none."""
    store = open_store(args)
    _refuse_absent(store, args.ids)
    if not args.force:
        _refuse_newest(store, set(args.ids))
    freed = sum(store.delete(id_) for id_ in args.ids)
    if args.json:
        print_json({"removed": args.ids, "freed_bytes": freed})
    else:
        say(f"{len(args.ids)} deleted, {text.size(freed)} freed")
    return 0


def _refuse_absent(store: Repository, ids: list[str]) -> None:
    for id_ in ids:
        if not store.exists(id_):
            raise NotFound(Reason.CHECKPOINT_MISSING, checkpoint=id_)


def _refuse_newest(store: Repository, ids: set[str]) -> None:
    """Refuse the newest checkpoint of a session, all that a suspended one has."""
    # Only the service knows whether it is suspended, so this errs on the safe side.
    infos = store.list()
    newest = {info.key: info for info in infos}
    for info in newest.values():
        if info.id in ids:
            what = (
                f"{info.id} is the newest checkpoint of {info.key}: if that session is"
                " suspended, it is all there is of it. Delete it on the Hub's page, or"
                " say --force."
            )
            raise Refused(Reason.INVALID, what=what)
    unreadable = ids - {info.id for info in infos}
    if unreadable:
        what = f"{min(unreadable)} cannot be read, so it may be needed: --force."
        raise Refused(Reason.INVALID, what=what)


def init(args: argparse.Namespace) -> int:
    """Write an id into an empty place and beside the master key; repeatable."""
    settings = settings_of(args)
    state = state_folder.place()
    check_folder(settings, may_be_new=True)
    where, place = settings.store_url, place_of(settings)
    file = key_file(settings, state)
    if file is not None:
        now = SystemClock().now()
        store = store_init.begin(place, where, file, now)
    else:
        keys = keys_of(settings, state)
        store = keys.store_id
        if not store:
            refuse(
                f"This master key is kept where nothing can be written. Give it a new"
                f" {STORE_ID} there, {new_id()} for example, and repeat this."
            )
        IdentifiedBackend(place, keys, where).begin()
    if args.json:
        print_json({"store": store, "place": where})
    else:
        say(f"The store {store} is at {where}.")
        if file is not None:
            say(f"Keep a copy of its master key elsewhere: {file}")
    return 0
