"""Keeps the images back that are to be changed before they are saved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.checkpoint.criu import images
from jupyterhub_gpu_reclaim.checkpoint.files import locks, other_names

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from jupyterhub_gpu_reclaim.checkpoint.criu.stream import Sink

FILES: Final = "files.img"
_MEMORIES: Final = "mm-"


class HeldImages:
    """Passes CRIU's images on but for those that are to be rewritten."""

    def __init__(self, sinks: Callable[[str], Sink]) -> None:
        self._sinks = sinks
        self.kept: dict[str, bytes] = {}

    def __call__(self, name: str) -> Sink:
        """See ``CaptureServer``."""
        if name in {FILES, locks.IMAGE} or name.startswith(_MEMORIES):
            return _KeptImage(name, self.kept)
        return self._sinks(name)

    def reopen(self, closed: Collection[int]) -> None:
        """Have those processes be dumpable again that were so before the dump."""
        for name, data in self.kept.items():
            number = name.removeprefix(_MEMORIES).removesuffix(".img")
            if name.startswith(_MEMORIES) and int(number) in closed:
                payload = images.only(data, images.MM_MAGIC)
                memory = images.parse("mm_entry", payload)
                memory.dumpable = 1
                self.kept[name] = images.join(
                    images.MM_MAGIC, [images.serialize(memory)]
                )

    def rename(self, names: Mapping[str, bytes]) -> None:
        """Put their other names in (``other_names``)."""
        if names:
            self.kept[FILES] = other_names.rewrite(self.kept[FILES], names)

    def save(self) -> None:
        """Pass on what was kept."""
        for name, data in self.kept.items():
            sink = self._sinks(name)
            sink.write(memoryview(data))
            sink.close()


class _KeptImage:
    def __init__(self, name: str, kept: dict[str, bytes]) -> None:
        self._name = name
        self._kept = kept
        self._data = bytearray()

    def write(self, data: memoryview, /) -> None:
        self._data += data

    def close(self) -> None:
        self._kept[self._name] = bytes(self._data)
