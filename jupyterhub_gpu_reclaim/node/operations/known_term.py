"""The service that this agent obeys, in its state folder: the highest term it saw.

Who pauses, or whose request is held up on its way, does not know that another service
works by then. So each request says its term (``common/term.py``), and one of a lower
term than the highest is refused: a look as well, since what it shows would not be safe
from the orders of the higher one.

A request without a term is a person's. Looks are answered; orders are obeyed as long as
no service was ever heard.
"""

from __future__ import annotations

import asyncio
import logging
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from jupyterhub_gpu_reclaim.common.decoders import json_decoder
from jupyterhub_gpu_reclaim.common.durable import write_durably
from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.logs import News
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.term import Term

if TYPE_CHECKING:
    from pathlib import Path

_log = logging.getLogger(__name__)

#: In the state folder.
FILE: Final = "term.json"

#: Giver of the order that this task carries out; ``own``: the agent by itself.
_whose: ContextVar[Term | Literal["own"] | None] = ContextVar("whose", default="own")


class KnownTerm:
    """The highest term, on the event loop."""

    def __init__(self, state: Path) -> None:
        self._file = state / FILE
        self._writing = asyncio.Lock()
        self._known = self._read()
        self._is_kept = True
        self._news = News()

    @property
    def number(self) -> int:
        """The highest; 0: no term was ever seen."""
        return self._known.number if self._known is not None else 0

    async def hear(self, term: Term | None, *, order: bool) -> None:
        """Take a request up; from now on this task acts for that service.

        ``order``: whether it is more than a look.

        Raises:
            Refused: ``former_service``.
        """
        _whose.set(term)
        if term is None:
            if order:
                self.confirm()
            return
        async with self._writing:
            if self._known is None or term.number > self._known.number:
                self._known, self._is_kept = term, False
            if not self._is_kept:
                await self._keep(self._known)
        self.confirm()

    def confirm(self) -> None:
        """Make sure, right before an effect, that the order still counts.

        Raises:
            Refused: ``former_service``.
        """
        whose, known = _whose.get(), self._known
        if known is None or whose == "own":
            return
        if whose is None or whose.is_before(known):
            term = whose.number if whose is not None else "none"
            raise Refused(Reason.FORMER_SERVICE, term=term, obeyed=known.number)

    async def _keep(self, term: Term) -> None:
        """Write it; where that fails, memory holds, and the next request tries."""
        # A session must not stay as it is because the agent's own disk is full.
        try:
            await asyncio.to_thread(self._write, term)
        except OSError as error:
            if self._news.is_new(FILE, error):
                _log.error("- the service's term cannot be written: %s", error)
        else:
            self._news.is_new(FILE)
            self._is_kept = True

    def _write(self, term: Term) -> None:
        write_durably(self._file, msgspec.json.encode(term))

    def _read(self) -> Term | None:
        try:
            return json_decoder(Term).decode(self._file.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            _log.error("- the service's term is not known: %s", error)
            return None


def act_for_itself() -> None:
    """Mark what this task does from now on as no order, whoever has caused it."""
    _whose.set("own")
