"""The service's term, sent with each request to an agent.

The journal counts the services that have worked on it, one after the other. The header
is as trustworthy as the order beside it: both need the agents' token.
"""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

from jupyterhub_gpu_reclaim.common.errors import BadRequest
from jupyterhub_gpu_reclaim.common.models import Value
from jupyterhub_gpu_reclaim.common.reasons import Reason

#: The header: number and holder.
TERM = "X-GPU-Reclaim-Term"
#: Highest number that the journal's column holds, in every database.
HIGHEST = (1 << 31) - 1
_WORDS = re.compile(r"([0-9]{1,10}) ([A-Za-z0-9_-]{1,64})")


class Term(Value, frozen=True, kw_only=True):
    """One service's time with the journal; the higher number is the later one."""

    number: Annotated[int, msgspec.Meta(ge=1, le=HIGHEST)]
    #: Which service. After a loss of the journal a number is given a second time; that
    #: service takes a higher one, once an agent has told it.
    holder: str

    def __str__(self) -> str:
        return f"{self.number} {self.holder}"

    def is_before(self, other: Term) -> bool:
        """Whether its orders are void for an agent that has seen the other one."""
        if self.number == other.number:
            return self.holder != other.holder
        return self.number < other.number

    @classmethod
    def of_header(cls, text: str) -> Term | None:
        """Parse the header; None: there was none.

        Raises:
            BadRequest: it is not a term.
        """
        if not text:
            return None
        words = _WORDS.fullmatch(text)
        if words is None or not 1 <= int(words[1]) <= HIGHEST:
            raise BadRequest(Reason.INVALID, what=f"The header {TERM} is not a term.")
        return cls(number=int(words[1]), holder=words[2])
