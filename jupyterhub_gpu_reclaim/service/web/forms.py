"""The pages' forms, which work without scripts.

They count with the proof in the page (``api/visits.py``). Every action goes through the
same calls as the API's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.decoders import convert
from jupyterhub_gpu_reclaim.common.errors import BadRequest
from jupyterhub_gpu_reclaim.common.orders import KINDS, Order
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.service.api.people import give
from jupyterhub_gpu_reclaim.service.web.pages import SESSION_PATH, TOLD, Page

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.models import SessionKey


class Act(Page):
    async def post(self, user: str, server: str, kind: str) -> None:
        key, order = self.key(user, server), self._order(KINDS[kind])
        told = f"{kind}-else" if order.is_else(await give(self, key, order)) else kind
        if self.for_script:
            self.set_header("Content-Type", "application/json")
            self.finish(codec.encode(TOLD[told]))
        else:
            self.redirect(self._back(key, told), status=303)

    def _order(self, kind: type[Order]) -> Order:
        """The order that the form has the fields of.

        Raises:
            BadRequest: one is missing, or no such value.
        """
        names = self.request.body_arguments.keys() & kind.__struct_fields__
        said = {name: self.get_body_argument(name) for name in names}
        try:
            return convert(said, kind, strict=False)
        except msgspec.ValidationError as error:
            raise BadRequest(Reason.INVALID, what=f"Not understood: {error}.") from None

    def _back(self, key: SessionKey, told: str) -> str:
        """The page's address, made here: nothing in a form leads elsewhere."""
        prefix, page = self.context.prefix, self.get_body_argument("page", "mine")
        if page == "start":  # the Hub's page of a start, which shows how it goes
            return self.start_url(key)
        if page == "one":
            return f"{prefix}sessions/{key.path}?done={told}"
        return f"{prefix}mine?done={told}"


ROUTES = ((f"{SESSION_PATH}/({'|'.join(KINDS)})", Act),)
