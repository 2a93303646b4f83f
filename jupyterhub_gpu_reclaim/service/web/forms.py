"""The pages' forms, which work without scripts, and the "start fresh" page.

They count with the proof in the page (``api/visits.py``). Every action goes through the
same calls as the API's.
"""

from __future__ import annotations

import msgspec

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.decoders import convert
from jupyterhub_gpu_reclaim.common.errors import BadRequest
from jupyterhub_gpu_reclaim.common.models import Phase, SessionKey
from jupyterhub_gpu_reclaim.common.orders import KINDS, Order
from jupyterhub_gpu_reclaim.common.reasons import ASKS, Reason
from jupyterhub_gpu_reclaim.service.api.people import give
from jupyterhub_gpu_reclaim.service.web.pages import SESSION_PATH, TOLD, Page


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


class Fresh(Page):
    """The "start fresh" page: what happens to the checkpoint, and the button for it.

    The Hub's own page leads here if a session could not be resumed.
    """

    async def get(self, user: str, server: str) -> None:
        view = self.context.control.users.session(self.key(user, server))
        (shown,) = self.cards([view])
        failure = view.failure
        self.page(
            "fresh.html",
            card=shown,
            saved=view.phase is Phase.SUSPENDED and bool(view.checkpoint),
            renamed=failure is not None and failure.code == Reason.RENAMED.value,
            start=self.start_url(self.key(user, server)),
            asks=failure is not None and Reason.of(failure.code) in ASKS,
            files_newer=failure is not None
            and failure.code == Reason.FILES_NEWER.value,
            days=f"{self.context.limits.set_aside_days:g}",
            xsrf=self.xsrf(),
        )


ROUTES = (
    (f"{SESSION_PATH}/fresh", Fresh),
    (f"{SESSION_PATH}/({'|'.join(KINDS)})", Act),
)
