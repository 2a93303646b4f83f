"""Configuration values with a unit, checked when they are set.

Used by everything that administrators configure. A value that makes no sense is an
error at the start, in words, never a surprise at use.
"""

from __future__ import annotations

import math
from typing import Any

from traitlets import Float, TraitError


class Seconds(Float[Any, Any]):
    """A duration in seconds: a finite number, not negative."""

    info_text = "a duration in seconds, not negative"

    def __init__(self, default: float | None = 0.0, **kwargs: Any) -> None:
        kwargs.setdefault("min", 0.0)
        super().__init__(default, **kwargs)

    def validate(self, obj: Any, value: Any) -> Any:
        """Refuse what is no number of seconds.

        Raises:
            TraitError: negative, infinite or no number.
        """
        return _finite(self, obj, super().validate(obj, value))


class Percent(Float[Any, Any]):
    """A share in percent: a finite number, not negative; 100 is all of one."""

    info_text = "a share in percent, not negative"

    def __init__(self, default: float | None = 0.0, **kwargs: Any) -> None:
        kwargs.setdefault("min", 0.0)
        super().__init__(default, **kwargs)

    def validate(self, obj: Any, value: Any) -> Any:
        """Refuse what is no share.

        Raises:
            TraitError: negative, infinite or no number.
        """
        return _finite(self, obj, super().validate(obj, value))


def _finite(trait: Float[Any, Any], obj: Any, value: Any) -> Any:
    if value is not None and not math.isfinite(value):
        name = f"{type(obj).__name__}.{trait.name}"
        raise TraitError(f"{name} must be {trait.info_text}, not {value}")
    return value
