"""Which of many cases run at each push: the others are long stories."""

from collections.abc import Iterable
from typing import Any

import pytest


def but(cases: Iterable[Any], *each_push: Any) -> list[Any]:
    """Return all cases as parameters, all but those of each push marked as long."""
    cases = list(cases)
    assert set(each_push) <= set(cases), "no such case"
    return [case if case in each_push else _long(case) for case in cases]


def _long(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.long)
