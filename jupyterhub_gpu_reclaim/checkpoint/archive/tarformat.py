"""The extensions to plain tar that ``writer`` and ``reader`` share.

Pure. All of it stands in pax headers, which other programs skip.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Final
from urllib.parse import quote_from_bytes, unquote_to_bytes

from jupyterhub_gpu_reclaim.common.errors import RestoreFailed
from jupyterhub_gpu_reclaim.common.reasons import Reason

if TYPE_CHECKING:
    import tarfile
    from collections.abc import Iterable, Iterator

#: On a folder: what the new place has below it is removed first.
OPAQUE: Final = "RECLAIM.opaque"
#: On the last entry, which tells a whole stream from one that was cut.
END: Final = "RECLAIM.end"

BLOCK_BYTES: Final = 1 << 20

_EXTENTS: Final = "RECLAIM.extents"
_XATTR: Final = "LIBARCHIVE.xattr."
_NANO: Final = 1_000_000_000


def time_header(nanoseconds: int) -> dict[str, str]:
    """A time of change, exactly; tarfile itself would round it to a float."""
    seconds, rest = divmod(nanoseconds, _NANO)
    return {"mtime": f"{seconds}.{rest:09}"}


def time_of(info: tarfile.TarInfo) -> int:
    """The time of change of an entry, in nanoseconds.

    Raises:
        ValueError: the header is damaged.
    """
    seconds, _, fraction = info.pax_headers.get("mtime", "0").partition(".")
    return int(seconds) * _NANO + int(fraction.ljust(9, "0")[:9])


def attribute_header(name: str, value: bytes) -> dict[str, str]:
    key = _XATTR + quote_from_bytes(name.encode("utf-8", "surrogateescape"))
    return {key: base64.b64encode(value).decode("ascii")}


def attributes_of(info: tarfile.TarInfo) -> Iterator[tuple[bytes, bytes]]:
    """The extended attributes of an entry.

    Raises:
        ValueError: a header is damaged.
    """
    for key, value in info.pax_headers.items():
        if key.startswith(_XATTR):
            name = unquote_to_bytes(key.removeprefix(_XATTR))
            yield name, base64.b64decode(value, validate=True)


def extents_header(size: int, extents: Iterable[tuple[int, int]]) -> dict[str, str]:
    """Header of a file with holes: its real size, and its data as (offset, length)."""
    return {_EXTENTS: ",".join((str(size), *(f"{a}:{n}" for a, n in extents)))}


def layout_of(info: tarfile.TarInfo) -> tuple[int, list[tuple[int, int]]]:
    """The size of a file, and where the entry's data go.

    Raises:
        RestoreFailed: they do not fit together (``checkpoint_damaged``).
        ValueError: the header is damaged.
    """
    text = info.pax_headers.get(_EXTENTS)
    if text is None:
        return info.size, [(0, info.size)]
    total, *pairs = text.split(",")
    size, extents = int(total), []
    for pair in pairs:
        start, _, length = pair.partition(":")
        extents.append((int(start), int(length)))
    inside = all(a >= 0 and n >= 0 and a + n <= size for a, n in extents)
    if size < 0 or not inside or sum(n for _, n in extents) != info.size:
        raise damaged("an archive holds a file whose parts do not fit")
    return size, extents


def damaged(why: str) -> RestoreFailed:
    return RestoreFailed(Reason.CHECKPOINT_DAMAGED, why=why)
