"""Makes a spawner's sessions suspendable: asks the service, keeps the login alive.

``class MySpawner(ReclaimMixin, SomeSpawner)`` with the placement hooks of ``memory.py``
filled in (``hub/local/spawner.py`` shows how). It decides nothing: the service answers
whether a start is cold, a restore or an adoption, and whether a stop is real or a
release. It never starts a session cold while there may be a checkpoint, and never
writes
a token anywhere.

Every trap of JupyterHub that is handled here is listed, with its test, in
``docs/reference/jupyterhub-traps.md``; "T4" in a comment points there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jupyterhub.utils import maybe_future
from tornado import web

from jupyterhub_gpu_reclaim.common import deletion_orders
from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.hub.spawner import logins, patches
from jupyterhub_gpu_reclaim.hub.spawner.state import Pointer
from jupyterhub_gpu_reclaim.hub.spawner.stop import Stopping

patches.apply()


class ReclaimMixin(Stopping):
    """Cooperative mixin for spawners: ``super()`` places, this class plans."""

    async def get_options_form(self) -> Any:
        """No form on a resume: the session is what it was (T14)."""
        return "" if self.reclaim_suspended else await super().get_options_form()

    async def rename(self, old_name: str, new_name: str) -> None:
        """Refused while suspended: URL, cookie and client carry the name (T10)."""
        if self._pointer.precious:
            reason = Reason.RENAME_SUSPENDED
            raise web.HTTPError(409, f"{reason.sentence()} {reason.hint}")
        await super().rename(old_name, new_name)

    async def delete_forever(self) -> None:
        """The server is deleted: its checkpoints and its login go, too (T5, T10)."""
        await maybe_future(super().delete_forever())
        written = self._order_deletion()
        try:
            await self._service.forget(self.reclaim_key)
            if written is not None:  # the service has done so, where it knew of it
                deletion_orders.remove(written)
        except ReclaimError as error:
            later = "the service does it later" if written else "it is NOT repeated"
            self.log.warning("%s: forget, %s: %s", self.reclaim_key, later, error)
        logins.delete_token(self, self._pointer.token_id)
        self._pointer = Pointer()

    def _order_deletion(self) -> Path | None:
        """Write the order down for the service; None: that is impossible.

        The Hub deletes a server once: neither a service that is away nor a lost answer
        may
        lose that.
        """
        if not (self.reclaim_service and self.reclaim_token_file):
            return None
        folder = Path(self.reclaim_token_file).parent
        try:
            return deletion_orders.write(folder, self.reclaim_key)
        except OSError as error:
            self.log.warning("%s: no order to delete: %s", self.reclaim_key, error)
            return None
