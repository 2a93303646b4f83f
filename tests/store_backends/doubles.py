"""Checkpoints without contents: names and lengths are all that tiers look at."""

from __future__ import annotations

import json

from jupyterhub_gpu_reclaim.common.errors import NotFound
from jupyterhub_gpu_reclaim.common.models import CheckpointInfo, SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.backend import Entry, ObjectMissing, Unavailable
from jupyterhub_gpu_reclaim.store.backends.proxies import BackendProxy
from jupyterhub_gpu_reclaim.store.catalogue.locks import WriteIntent
from jupyterhub_gpu_reclaim.store.format import layout
from simulation.doubles.memory_backend import MemoryBackend


class SmallRepository:
    """What ``Repository`` knows of checkpoints; its manifests are JSON in the open."""

    def __init__(self, backend) -> None:
        self.backend = backend

    def commit(self, checkpoint, packs, created=0.0):
        """Write as a writer does: intent, packs, manifest, and the intent is gone.

        Args:
            checkpoint: its id.
            packs: name to bytes; None for one of an earlier checkpoint.
            created: when it was suspended.
        """
        self.backend.publish(layout.intent(checkpoint), b"intent")
        for name, data in packs.items():
            if data is not None:
                writer = self.backend.create(f"packs/{name}")
                writer.write(data)
                writer.finish()
                writer.abandon()
        needs = [
            Entry(f"packs/{name}", self.backend.length(f"packs/{name}"))
            for name in packs
        ]
        body = json.dumps({"created": created, "needs": needs}).encode()
        self.backend.publish(layout.manifest(checkpoint), body, needs=needs)
        self.backend.delete(layout.intent(checkpoint))

    def delete(self, checkpoint):
        try:
            needs = self.objects(checkpoint)
        except NotFound:
            return
        self.backend.delete(layout.manifest(checkpoint))
        for entry in needs:
            self.backend.delete(entry.name)

    def list(self):
        names = [e.name for e in self.backend.list(layout.MANIFESTS)]
        found = [self._info(layout.id_of(name)) for name in names]
        return sorted(found, key=lambda info: info.created)

    def objects(self, checkpoint):
        return [Entry(*each) for each in self._body(checkpoint)["needs"]]

    def verify(self, checkpoint, **_):
        """Nothing is ever damaged: there is nothing in it to be opened."""
        self._body(checkpoint)
        return []

    def intent(self, checkpoint):
        return WriteIntent(checkpoint, 0.0, frozenset([checkpoint]))

    def read(self, checkpoint):
        """All bytes of it, from wherever they stand."""
        return b"".join(
            self.backend.read(name, 0, length)
            for name, length in self.objects(checkpoint)
        )

    def _info(self, checkpoint):
        return CheckpointInfo(
            id=checkpoint,
            key=SessionKey("ada"),
            incarnation="i",
            generation=1,
            created=self._body(checkpoint)["created"],
            logical_bytes=0,
            stored_bytes=sum(e.length for e in self.objects(checkpoint)),
        )

    def _body(self, checkpoint):
        try:
            data = self.backend.read(layout.manifest(checkpoint), 0, 1 << 20)
        except ObjectMissing:
            raise NotFound(Reason.CHECKPOINT_MISSING, checkpoint=checkpoint) from None
        return json.loads(data)


class Died(Exception):
    """The process was killed: whoever catches this cheats."""


class DiesAt(BackendProxy):
    """A backend whose process is killed before its n-th call, and stays dead.

    Args:
        backend: what the dead process leaves behind.
        mortal: shared by all backends of the process: calls made, and the fatal one.
    """

    def __init__(self, backend, mortal) -> None:
        def call(work):
            mortal["calls"] += 1
            if mortal["calls"] >= mortal["dies_at"] > 0:
                raise Died
            return work()

        super().__init__(backend, call)


class Remote(BackendProxy):
    """A store behind the node that counts what is sent, and watches the order."""

    def __init__(self, backend) -> None:
        super().__init__(backend)
        self.sent = []
        self.broken = []

    def create(self, name):
        self.sent.append(name)
        return super().create(name)

    def publish(self, name, data, *, needs=()):
        if name.startswith(layout.MANIFESTS):
            for each, length in json.loads(data)["needs"]:
                try:
                    whole = self._backend.length(each) == length
                except ObjectMissing:
                    whole = False
                if not whole:
                    self.broken.append((name, each))
        super().publish(name, data, needs=needs)


class Unreachable(MemoryBackend):
    """A store behind the node that does not answer."""

    def __getattribute__(self, name):
        if name in {"publish", "read", "length", "list", "delete", "create"}:
            raise Unavailable("it does not answer")
        return super().__getattribute__(name)
