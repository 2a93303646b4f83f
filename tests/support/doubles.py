"""Whether a double still takes the calls of what it stands for."""

import inspect


def unlike(double: type, real: type) -> list[str]:
    """The public methods of ``real`` that ``double`` lacks or that take others."""
    return [
        name
        for name, method in inspect.getmembers(real, inspect.isfunction)
        if not name.startswith("_") and _takes(double, name) != _taken(method)
    ]


def _takes(double: type, name: str) -> list[str] | None:
    method = getattr(double, name, None)
    return _taken(method) if callable(method) else None


def _taken(method: object) -> list[str]:
    return list(inspect.signature(method).parameters)  # type: ignore[arg-type]
