"""Selects an action's sessions: by name, or by their properties."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.errors import BadRequest, NotFound
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from jupyterhub_gpu_reclaim.common.models import SessionView

#: Reasons that mean that a session works, that this is not known, or that it is kept.
_NOT_IDLE = frozenset(
    reason.value
    for reason in (
        Reason.KERNEL_BUSY,
        Reason.KERNEL_UNKNOWN,
        Reason.PROMPT_OPEN,
        Reason.CPU_BUSY,
        Reason.GPU_BUSY,
        Reason.DATA_MOVES,
        Reason.PAGE_USED,
        Reason.SAMPLES_MISSING,
        Reason.AGENT_UNREACHABLE,
        Reason.AGENT_UNTRUSTED,
        Reason.NODE_SILENT,
        Reason.NODE_UNTRUSTED,
        Reason.KEPT,
        Reason.OPTED_OUT,
    )
)


def key_of(text: str) -> SessionKey:
    """Parse ``user`` (the default server) or ``user/server``; BadRequest: no user."""
    user, _, server = text.partition("/")
    if not user:
        what = f"{text!r} names no session; ada/ or ada/lab would."
        raise BadRequest(Reason.INVALID, what=what)
    return SessionKey(user, server)


def chosen(
    args: argparse.Namespace, views: Iterable[SessionView], now: float
) -> list[SessionView]:
    """The named sessions, and of them or of all those that fit.

    Raises:
        NotFound: a named one does not exist.
        BadRequest: a name is invalid.
    """
    found = {view.key: view for view in views}
    keys = [key_of(text) for text in args.targets] or sorted(found)
    for key in keys:
        if key not in found:
            raise NotFound(Reason.UNKNOWN_SESSION, session=key)
    return [found[key] for key in dict.fromkeys(keys) if _fits(args, found[key], now)]


def _fits(args: argparse.Namespace, view: SessionView, now: float) -> bool:
    if args.user and view.key.user not in args.user:
        return False
    if args.node and view.facts.node not in args.node:
        return False
    if args.state and view.phase.value not in args.state:
        return False
    seconds = getattr(args, "idle_for", None)
    return seconds is None or is_idle(view, seconds, now)


def is_idle(view: SessionView, seconds: float, now: float) -> bool:
    """Whether a session is known to be unused for so long, and is kept by nobody."""
    usage = view.usage
    if usage is None or not usage.complete or usage.unknown_kernel:
        return False
    if view.facts.opted_out_by or (view.kept_until or 0.0) > now:
        return False
    if view.verdict is not None and view.verdict.code in _NOT_IDLE:
        return False
    return not usage.used_since(now - seconds)


def selects(args: argparse.Namespace) -> bool:
    """Whether sessions are chosen by properties, not by name alone."""
    return bool(
        args.all
        or args.user
        or args.node
        or args.state
        or getattr(args, "idle_for", None) is not None
    )


def confirmed(args: argparse.Namespace, action: str, count: int) -> bool:
    """Ask the person, unless ``--yes``; BadRequest: there is no terminal."""
    if args.yes:
        return True
    many = "this session" if count == 1 else f"these {count} sessions"
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        what = f"That would {action} {many}; say --yes if it should."
        raise BadRequest(Reason.INVALID, what=what)
    sys.stderr.write(f"{action[:1].upper()}{action[1:]} {many}? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}
