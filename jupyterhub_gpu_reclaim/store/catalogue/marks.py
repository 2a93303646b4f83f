"""The marks beside the manifests: what was left, chosen, and gone on from.

A mark is never changed: a later one is another object with a higher number, and the
highest counts, in whatever order they arrive. One that cannot be opened counts as no
mark: better to find a checkpoint than to lose it. Thread-safe.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.errors import Refused, StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.backend import ObjectExists, ObjectMissing
from jupyterhub_gpu_reclaim.store.format import layout, mark

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jupyterhub_gpu_reclaim.common.models import Mark
    from jupyterhub_gpu_reclaim.store.backend import Backend, Entry
    from jupyterhub_gpu_reclaim.store.format.layout import MarkNumber
    from jupyterhub_gpu_reclaim.store.format.manifest import Body

log = logging.getLogger(__name__)


class Marks:
    """The marks of a store; any call raises ``StoreError`` when that does not work."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        #: Contents of the marks of the last list, by name; replaced as a whole.
        self._read: dict[str, Mark] = {}

    def of(self, bodies: Iterable[Body]) -> dict[str, tuple[Mark, MarkNumber]]:
        """The latest mark of each checkpoint; one list, and each mark is read once."""
        highest = latest(self._backend.list(layout.MARKS))
        words: dict[str, tuple[Mark, MarkNumber]] = {}
        said: dict[str, Mark] = {}
        for body in bodies:
            name = highest.get(body.info.id, "")
            if name in self._read:
                said[name] = self._read[name]
            elif name:
                self._look(name, body, said)
            number = layout.mark_number(name)
            if name in said and number is not None:
                words[body.info.id] = said[name], number
        self._read = said
        return words

    def put(self, body: Body, said: Mark, number: MarkNumber) -> None:
        """Seal a mark of a checkpoint, durably; idempotent.

        Raises:
            Refused: ``FORMER_SERVICE``: there is a later one.
        """
        name = layout.mark(body.info.id, number)
        broken, stands = [], False
        for other in reversed(self._names(body.info.id)):
            if other < name or stands:
                break
            try:
                self._refuse(other, body, said, number)
                stands = True
            except ObjectMissing:
                continue
            except StoreError as error:
                if error.reason is not Reason.CHECKPOINT_DAMAGED:
                    raise
                broken.append(other)
        if name in broken:  # where it has to stand
            self._backend.delete(name)
        if not stands:
            self._publish(name, body, said, number)
        for other in broken:
            if other != name:  # it would count still, as none
                self._backend.delete(other)

    def damage(self, body: Body) -> list[tuple[str, str]]:
        """The mark of a checkpoint that counts, if it cannot be opened; and why."""
        for name in self._names(body.info.id)[-1:]:
            try:
                self._open(name, body)
            except ObjectMissing:
                continue  # a later word, and a sweep
            except StoreError as error:
                if error.reason is not Reason.CHECKPOINT_DAMAGED:
                    raise
                return [(name, error.message)]
        return []

    def _names(self, checkpoint: str) -> list[str]:
        entries = self._backend.list(layout.mark_prefix(checkpoint))
        return sorted(e.name for e in entries if layout.mark_number(e.name))

    def _look(self, name: str, body: Body, said: dict[str, Mark]) -> None:
        try:
            said[name] = self._open(name, body)
        except ObjectMissing:
            # A later word, and a sweep: the next list has that one.
            log.info("- %s has gone", name)
        except StoreError as error:
            if error.reason is not Reason.CHECKPOINT_DAMAGED:
                raise
            log.warning("- %s counts as none: %s", name, error)

    def _publish(self, name: str, body: Body, said: Mark, number: MarkNumber) -> None:
        try:
            self._backend.publish(name, mark.encode(said, name, body.origins[0]))
        except ObjectExists:  # our own, whose answer was lost; or another's
            self._refuse(name, body, said, number)

    def _refuse(self, name: str, body: Body, said: Mark, number: MarkNumber) -> None:
        """Refuse a mark that comes after a later one, unless both say the same."""
        found = layout.mark_number(name)
        if self._open(name, body) != said and found is not None:
            raise Refused(Reason.FORMER_SERVICE, term=number.term, obeyed=found.term)

    def _open(self, name: str, body: Body) -> Mark:
        """Read a mark.

        Raises:
            ObjectMissing: it has gone.
            StoreError: ``CHECKPOINT_DAMAGED``: it cannot be opened.
        """
        data = self._backend.read(name, 0, mark.MAX_BYTES)
        return mark.decode(data, name, body.origins[0])


def latest(entries: Iterable[Entry]) -> dict[str, str]:
    """For each checkpoint the name of its mark with the highest number."""
    names = sorted(e.name for e in entries if layout.mark_number(e.name))
    return {layout.id_of(name) or "": name for name in names}
