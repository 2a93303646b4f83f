"""Faults of stores, by name."""

from typing import Any

from jupyterhub_gpu_reclaim.store.backend import Backend


def turn_bit(backend: Backend, name: str, at: int) -> None:
    """Let one bit of an object rot: its name and its length stay."""
    data = bytearray(backend.read(name, 0, backend.length(name)))
    data[at] ^= 1
    backend.delete(name)
    writer = backend.create(name)
    writer.write(data)
    writer.finish()


class Around:
    """A backend around another one, for a test that changes some of its calls."""

    def __init__(self, backend: Backend) -> None:
        self.inner = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)
