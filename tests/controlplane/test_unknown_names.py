"""Of a name of which nobody knows anything, nothing is remembered, whatever is asked.

Names are free: a user may ask and order of any server of theirs, and the Hub tells of
servers that never were.
"""

import asyncio
import types
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress

from sqlalchemy import func, select

from jupyterhub_gpu_reclaim.common.deletion_orders import Deletion
from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from jupyterhub_gpu_reclaim.common.models import Placement, SessionKey
from jupyterhub_gpu_reclaim.controlplane import schema
from jupyterhub_gpu_reclaim.controlplane.controller import Controller

NAMES = 100
_CONTAINERS = (dict, list, set, frozenset, tuple, deque)


def place(key: SessionKey, **more) -> Placement:
    return Placement(key=key, incarnation=f"i-{key.server}", **more)


def deletion(key: SessionKey, **more) -> Deletion:
    return Deletion(user=key.user, server=key.server, **more)


async def steps(control: Controller, key: SessionKey) -> None:
    async for _ in control.progress(key):
        pass


#: What people, tabs and the Hub ask and order.
CALLS: dict[str, Callable[[Controller, SessionKey], object]] = {
    "view": lambda c, key: c.users.session(key),
    "why": lambda c, key: c.users.why(key),
    "history": lambda c, key: c.users.audit(key),
    "story": lambda c, key: c.users.audit(key.user),
    "tab": lambda c, key: c.users.tab_counts(key, "s"),
    "suspend": lambda c, key: c.users.suspend(key, "x"),
    "save": lambda c, key: c.users.save(key, "x"),
    "nap": lambda c, key: c.users.nap(key, "x"),
    "wake": lambda c, key: c.users.wake(key, "x"),
    "resume": lambda c, key: c.users.resume(key, "x", manages=True),
    "put files back": lambda c, key: c.users.put_files_back(key, "x", manages=True),
    "keep": lambda c, key: c.users.keep(key, 60.0, "x", manages=True),
    "opt out": lambda c, key: c.users.opt_out(key, True, "x"),
    "renew login": lambda c, key: c.users.renew_login(key, "x"),
    "revoke tabs": lambda c, key: c.users.revoke_tabs(key, "x"),
    "start fresh": lambda c, key: c.users.start_fresh(key, "x"),
    "bring back": lambda c, key: c.users.bring_back(key, "c", "x", manages=True),
    "end a second tree": lambda c, key: c.users.end_tree(key, "i", "x"),
    "delete": lambda c, key: c.users.delete(key, "x"),
    "delete one": lambda c, key: c.users.delete(key, "x", "c"),
    "delete all": lambda c, key: c.users.delete(key, "x", everything=True),
    "plan start": lambda c, key: c.plan_start(place(key, owner="1.2")),
    "placed": lambda c, key: c.placed(place(key, checkpoint="c")),
    "progress": steps,
    "cancelled": lambda c, key: c.cancelled(place(key)),
    "login revoked": lambda c, key: c.login_revoked(place(key)),
    "plan stop": lambda c, key: c.plan_stop(place(key)),
    "release": lambda c, key: c.release(place(key)),
    "stopped": lambda c, key: c.stopped(place(key)),
    "forget": lambda c, key: c.forget(deletion(key)),
    "forget later": lambda c, key: c.forget(deletion(key, kept_from="culler")),
}


def held(root: object) -> int:
    """Members of all containers that our own objects hold."""
    total, seen, left = 0, {id(root)}, [root]
    while left:
        each = left.pop()
        if isinstance(each, _CONTAINERS):
            total += len(each)
            inside = [*each.items()] if isinstance(each, dict) else list(each)
        else:
            names = getattr(type(each), "__slots__", ())
            inside = [getattr(each, name, None) for name in names]
            inside += getattr(each, "__dict__", {}).values()
        for one in inside:
            known = id(one) in seen or isinstance(one, type | types.ModuleType)
            ours = type(one).__module__.startswith("jupyterhub_gpu_reclaim")
            if not known and (ours or isinstance(one, _CONTAINERS)):
                seen.add(id(one))
                left.append(one)
    return total


def written(control: Controller) -> int:
    journal = control._sessions.journal
    tables = schema.metadata.sorted_tables
    counts = [
        journal.read(select(func.count().label("n")).select_from(t)) for t in tables
    ]
    return sum(row["n"] for (row,) in counts)


async def test_nothing_is_remembered_of_names_that_nobody_knows(world):
    control, _ = await world.started()
    grown = {}

    async def ask(call: str) -> None:
        for number in range(NAMES):
            with suppress(ReclaimError):
                answer = CALLS[call](control, SessionKey("ada", f"{call} {number}"))
                if isinstance(answer, Awaitable):
                    await answer
        await asyncio.sleep(5.0)  # a few ticks

    for call in CALLS:
        before = held(control), written(control)
        await ask(call)
        after = held(control), written(control)
        more = tuple(b - a for a, b in zip(before, after, strict=True))
        if max(more) >= NAMES // 2:
            grown[call] = more
    assert not grown
