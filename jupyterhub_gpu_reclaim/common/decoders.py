"""Decoders by type, made by one thread at a time.

msgspec examines a type when it first meets it. A second thread that meets the same type
meanwhile, or one that it is part of, finds half of it and crashes the program (msgspec
0.22: a segmentation fault in ``_core``). So decoders are only made here; afterwards any
thread may use them.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_lock = threading.RLock()
_json: dict[Any, msgspec.json.Decoder[Any]] = {}
_msgpack: dict[Any, msgspec.msgpack.Decoder[Any]] = {}


def json_decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    found = _json.get(kind)
    if found is None:
        with _lock:
            found = _json.setdefault(kind, msgspec.json.Decoder(kind))
    return found


def msgpack_decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    found = _msgpack.get(kind)
    if found is None:
        with _lock:
            found = _msgpack.setdefault(kind, msgspec.msgpack.Decoder(kind))
    return found


def convert(value: Any, kind: type[T], **options: Any) -> T:
    """As ``msgspec.convert``, with its options.

    Raises:
        msgspec.ValidationError: the value does not fit.
    """
    json_decoder(kind)
    converted: T = msgspec.convert(value, kind, **options)
    return converted
