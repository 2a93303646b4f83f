"""Configuration values with a unit; an invalid one is an error at the start."""

from __future__ import annotations

import math
import re
from typing import Any
from urllib.parse import urlsplit

from traitlets import Float, TraitError, Unicode


class Amount(Float[Any, Any]):
    info_text = "a number, not negative"

    def __init__(self, default: float | None = 0.0, **kwargs: Any) -> None:
        kwargs.setdefault("min", 0.0)
        super().__init__(default, **kwargs)

    def validate(self, obj: Any, value: Any) -> Any:
        value = super().validate(obj, value)
        if value is not None and not math.isfinite(value):
            name = f"{type(obj).__name__}.{self.name}"
            raise TraitError(f"{name} must be {self.info_text}, not {value}")
        return value


class Seconds(Amount):
    info_text = "a duration in seconds, not negative"


class Percent(Amount):
    info_text = "a share in percent, not negative"


class ByteRate(Amount):
    info_text = "bytes a second, not negative"


class Matching(Unicode[str, Any]):
    """A text of one form, which ``info_text`` tells."""

    pattern = ".*"

    def validate(self, obj: Any, value: Any) -> Any:
        # The value is not repeated in the error, since it may hold a secret.
        found = super().validate(obj, value)
        if found is not None and not self.is_one(found):
            name = f"{type(obj).__name__}.{self.name}"
            raise TraitError(f"{name} must be {self.info_text}")
        return found

    def is_one(self, text: str) -> bool:
        return re.fullmatch(self.pattern, text) is not None


class Address(Matching):
    """An ``http`` or ``https`` address; empty: none."""

    info_text = "like https://host/path"

    def is_one(self, text: str) -> bool:
        try:
            parts = urlsplit(text)
            good = parts.scheme in {"http", "https"} and bool(parts.hostname)
            good = good and parts.port != 0
        except ValueError:
            return False
        return not text or (good and text.isprintable() and " " not in text)


class AgentAddress(Matching):
    """The address of an agent: nothing is sent to one by plain HTTP."""

    info_text = "like unix:/path or https://host:port: by plain HTTP nothing is sent"
    pattern = r"unix:/.+|https://[^/]+"
