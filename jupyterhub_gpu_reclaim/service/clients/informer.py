"""Informer: the pods of one kind as they are now, listed once, then watched.

A watch that ends, breaks, is throttled or falls too far behind costs a new list and
some time, never a wrong answer: if nothing was heard for too long, questions get
``Unreachable``.
"""

from __future__ import annotations

import logging
import random
from contextlib import aclosing
from typing import TYPE_CHECKING

import msgspec

from jupyterhub_gpu_reclaim.common.errors import ReclaimError, Unreachable
from jupyterhub_gpu_reclaim.common.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.common.models import SessionKey
    from jupyterhub_gpu_reclaim.service.clients.kubernetes import Api
    from jupyterhub_gpu_reclaim.service.clients.pods import Pod

_log = logging.getLogger(__name__)

#: Seconds after which everything is listed again, whatever the watch has reported.
RESYNC = 300.0
#: Seconds without any word after which the picture counts as unknown. A watch is
#: renewed every 30 s, which counts as a word.
STALE = 60.0
#: Seconds between two attempts, doubled from the first to the second.
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0


#: Pods that are gone, and whose end is remembered: a Hub asks within minutes.
REMEMBERED = 512


class Informer:
    def __init__(
        self, source: Api, clock: Clock, *, namespace: str, selector: str
    ) -> None:
        self._source = source
        self._clock = clock
        self._where = (namespace, selector)
        self._pods: dict[str, Pod] = {}
        self._uids: dict[SessionKey, set[str]] = {}
        self._gone: dict[str, Pod] = {}
        self._heard: float | None = None
        self._wait = FIRST_WAIT
        self._error: ReclaimError | None = None

    def now(self) -> list[Pod]:
        """List the pods, as of a moment ago.

        Raises:
            ReclaimError: nothing has been heard for too long; the error says why.
        """
        self._check()
        return list(self._pods.values())

    def of(self, key: SessionKey) -> list[Pod]:
        """List a session's pods, as of a moment ago; by an index.

        Raises:
            ReclaimError: nothing has been heard for too long; the error says why.
        """
        self._check()
        return [self._pods[uid] for uid in sorted(self._uids.get(key, ()))]

    def _check(self) -> None:
        heard = self._heard
        if heard is None or self._clock.monotonic() - heard > STALE:
            raise self._error or Unreachable(
                Reason.CLUSTER_UNREACHABLE, detail="not listed yet"
            )

    def last_seen(self) -> list[Pod]:
        """List every pod, and the last ones that are gone, as they were then.

        Pods that are gone count as being deleted: only that ends the knowledge of a
        pod.
        """
        return [*self._pods.values(), *self._gone.values()]

    async def fresh(self, more: str = "") -> list[Pod]:
        """List the pods right now, from the server; the watch is not affected."""
        namespace, selector = self._where
        return (await self._source.pods(namespace, f"{selector}{more}")).items or []

    async def run(self) -> None:
        while True:
            try:
                await self._follow()
            except ReclaimError as error:
                if self._error is None:
                    _log.warning("pods %s: %s", "/".join(self._where), error)
                wait, self._error = self._wait, error
                self._wait = min(2 * wait, LONGEST_WAIT)
                # Not all services of a cluster at once, after it was gone.
                await self._clock.sleep(wait * random.uniform(0.75, 1.25))  # noqa: S311

    def _note_answer(self) -> None:
        self._heard = self._clock.monotonic()
        if self._error is not None:
            _log.info("pods %s: known again", "/".join(self._where))
        self._error, self._wait = None, FIRST_WAIT

    async def _follow(self) -> None:
        """List once, and watch until the next list is due."""
        listed = await self._source.pods(*self._where)
        self._replace(listed.items or ())
        version = listed.metadata.resource_version
        until = self._clock.monotonic() + RESYNC
        while (begun := self._clock.monotonic()) < until:
            watch = self._source.watch(*self._where, version)
            async with aclosing(watch) as events:  # type: ignore[type-var]
                async for kind, pod in events:
                    version = pod.metadata.resource_version or version
                    self._apply(kind, pod)
            self._note_answer()
            if self._clock.monotonic() - begun < FIRST_WAIT:
                await self._clock.sleep(FIRST_WAIT)  # a server that ends all at once

    def _replace(self, pods: Iterable[Pod]) -> None:
        before, self._pods, self._uids = self._pods, {}, {}
        for pod in pods:
            self._put(pod.after(before.get(pod.uid)))
        for uid in before.keys() - self._pods.keys():
            self._note_gone(before[uid])
        self._note_answer()

    def _apply(self, kind: str, seen: Pod) -> None:
        pod = seen.after(self._pods.get(seen.uid))
        if kind == "DELETED":
            self._remove(pod.uid)
            self._note_gone(pod)
        elif kind != "BOOKMARK":
            self._put(pod)
        self._note_answer()

    def _note_gone(self, pod: Pod) -> None:
        meta = pod.metadata
        if meta.deletion_timestamp is None:  # by force, say
            meta = msgspec.structs.replace(meta, deletion_timestamp="")
        self._gone[pod.uid] = msgspec.structs.replace(pod, metadata=meta)
        while len(self._gone) > REMEMBERED:
            del self._gone[next(iter(self._gone))]

    def _put(self, pod: Pod) -> None:
        self._remove(pod.uid)
        self._pods[pod.uid] = pod
        self._uids.setdefault(pod.key, set()).add(pod.uid)

    def _remove(self, uid: str) -> None:
        pod = self._pods.pop(uid, None)
        if pod is None:
            return
        uids = self._uids[pod.key]
        uids.discard(uid)
        if not uids:
            del self._uids[pod.key]
