"""What a session is given by settings and hooks that a return must give it again.

The hooks of a start (``pre_spawn_hook``, ``auth_state_hook``, ``modify_pod_hook``,
callables among the settings) run at a return, too, and may decide otherwise. The
session keeps its environment and command, so most of that has no effect. But its
programs compute on the cards that their environment names, which a hook may have given
to another session by now; they run as the user they ran as, and expect their mounts.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from jupyterhub_gpu_reclaim.hub.spawner.placement import Launch

#: The variable that tells a session's programs which of the machine's cards are theirs.
#: (``NVIDIA_VISIBLE_DEVICES`` is for a container's runtime: a return may have others.)
CARDS = "CUDA_VISIBLE_DEVICES"
#: The variable that tells the images of Jupyter's docker-stacks as whom to run.
USER = "NB_UID"


def settle(
    launch: Launch,
    environment: Mapping[str, Any],
    mounts: Iterable[tuple[str, Any]] = (),
) -> dict[str, str]:
    """What a place gives to its session; a hold must give what the start gave.

    ``environment`` is as it is after all hooks; ``mounts`` are paths, each with what is
    mounted there, as plain values.

    Raises:
        Refused: a session is to come back that was given something else.
    """
    now = {
        name: "".join(str(environment.get(name) or "").split())
        for name in (CARDS, USER)
    }
    now |= {path: _digest(source) for path, source in mounts}
    if launch.mode == "hold" and launch.choice is not None:
        _compare(launch.choice.given, now)
    return now


def _digest(source: Any) -> str:
    # Not the source itself: it may hold a secret, and the Hub shows its state.
    text = json.dumps(source, sort_keys=True, default=str)
    return hashlib.blake2s(text.encode(), digest_size=8).hexdigest()


def _compare(there: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Refuse other users, cards and mounts; an unset variable does no harm."""
    user = there.get(USER, "")
    if USER in there and now[USER] not in {"", user}:
        raise Refused(Reason.USER_MISMATCH, there=user or "not set", here=now[USER])
    why = [
        f"something else would be mounted at {path}"
        if path in now
        else f"nothing would be mounted at {path}"
        for path, source in sorted(there.items())
        if path.startswith("/") and now.get(path) != source
    ]
    cards = there.get(CARDS, "")
    if CARDS in there and now[CARDS] not in {"", cards}:
        why.insert(0, f"{CARDS} was {cards or 'not set'} and would be {now[CARDS]}")
    if why:
        raise Refused(Reason.PROFILE_GONE, why=", ".join(why))
