"""Bounds of numbers and names, as types that ``msgspec`` checks at every decode."""

from __future__ import annotations

import re
from typing import Annotated, Final

from msgspec import Meta

#: Characters that end a line, command a terminal or turn the direction of writing.
_NOT_IN_A_LINE: Final = r"\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069"
#: The end, in Python and in JavaScript, which reads the OpenAPI document.
_END: Final = r"$(?!\n)"
_LINE: Final = rf"^[^{_NOT_IN_A_LINE}]*{_END}"
_LONGEST: Final = 1024

#: One line of text.
Line = Annotated[str, Meta(pattern=_LINE, max_length=_LONGEST)]
#: A user's or a server's; the Hub's column has 255 characters.
Name = Annotated[str, Meta(pattern=_LINE, max_length=255)]
#: A name that may be part of a path of ours: no slash, no leading dot or dash.
IDENTIFIER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
Identifier = Annotated[str, Meta(pattern=f"^{IDENTIFIER.pattern}{_END}")]
#: Counted by ones; fits a column of the journal.
Count = Annotated[int, Meta(ge=0, lt=1 << 31)]
#: Of a user or a group.
UserId = Annotated[int, Meta(ge=0, lt=1 << 32)]
#: Bytes; a thousand of them still fit a column.
Size = Annotated[int, Meta(ge=0, lt=1 << 53)]
#: Seconds since the epoch, up to the year 8307: every calendar can tell them.
Moment = Annotated[float, Meta(ge=0, le=2e11)]
#: How long something took or lasts; three hundred years.
Seconds = Annotated[float, Meta(ge=0, le=1e10)]
