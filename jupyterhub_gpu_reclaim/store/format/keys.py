"""The master keys: where they come from, which one wraps, which ones still open.

There may be several: the newest wraps, all open, so a key is changed by adding one, and
an old one is removed after ``rekey``. The id of their store (law 14) is kept beside
them: a line or a file named ``store-id``. The two are a pair, and are copied together.

A key service is a class of the admin's with :class:`Wrapper`'s methods and an attribute
``store_id``, named by its path (``package.module:Class``) and called without arguments.
Nothing here is ever logged.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import importlib
import os
import re
import stat
from typing import TYPE_CHECKING, Protocol, cast

from jupyterhub_gpu_reclaim.common.errors import ReclaimError, StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.backend import Unavailable
from jupyterhub_gpu_reclaim.store.format import crypto, identity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

#: Name of the line, or of the file, with the id of the store.
STORE_ID = "store-id"
_BOUND = b"gpu-reclaim store 1 key "
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
#: Bytes of a wrapped key that a manifest has room for.
MAX_WRAPPED = 4096
#: Far above any file of keys.
_MAX_BYTES = 65536


class Wrapper(Protocol):
    """Wraps data keys. Calls may block, and come from several threads."""

    def wrap(self, data_key: bytes, checkpoint: str) -> tuple[str, bytes]:
        """Wrap under the newest key, bound to that checkpoint's id.

        Returns the key's name (at most 64 of ``[A-Za-z0-9._-]``) and at most 4096
        bytes, or raises StoreError: it cannot be done now.
        """

    def unwrap(self, name: str, wrapped: bytes, checkpoint: str) -> bytes:
        """Unwrap what was wrapped for a checkpoint under the key of that name.

        Raises:
            StoreError: ``KEY_MISSING``, also where another key has that name.
            Unavailable: it cannot be done now.
        """


class StoreKeys(Wrapper, Protocol):
    @property
    def store_id(self) -> str:
        """Id of the store; empty if none was begun with them."""

    def read_again(self) -> None:
        """Reload them, if they may have changed; StoreError: never read at all."""


class KeyRing:
    """By name, the newest last; StoreError: there is none, or one is invalid."""

    def __init__(self, keys: Mapping[str, bytes], store_id: str = "") -> None:
        if not keys:
            raise _unusable("there is no master key")
        for name, key in keys.items():
            if not _NAME.fullmatch(name) or len(key) != crypto.KEY_BYTES:
                raise _unusable("a master key is not 32 bytes, or has a name that is")
        self._keys = dict(keys)
        self._newest = list(keys)[-1]
        self.store_id = store_id

    def __repr__(self) -> str:
        return f"KeyRing({', '.join(self._keys)})"

    def wrap(self, data_key: bytes, checkpoint: str) -> tuple[str, bytes]:
        key = self._keys[self._newest]
        return self._newest, crypto.wrap(key, data_key, _bound(checkpoint))

    def unwrap(self, name: str, wrapped: bytes, checkpoint: str) -> bytes:
        key = self._keys.get(name)
        if key is None:
            why = f"{name}, which encrypts the checkpoint, is not among the keys here"
            raise StoreError(Reason.KEY_MISSING, why=why)
        try:
            return crypto.unwrap(key, wrapped, _bound(checkpoint))
        except crypto.Forged:
            # A wrong key is by far the more likely: a flipped bit would have to be in
            # these few bytes. Both open nothing, and neither may delete anything.
            why = (
                f"another key has the name {name} of the one that encrypts the"
                " checkpoint, or the checkpoint was changed"
            )
            raise StoreError(Reason.KEY_MISSING, why=why) from None

    def read_again(self) -> None: ...


class LateKeys:
    """Keys that are loaded on first use, and again where one is missing."""

    # A folder of keys mounted late, or away for a while, is used once it is there.

    def __init__(self, load: Callable[[], StoreKeys]) -> None:
        self._load = load
        self._keys: StoreKeys | None = None

    def _loaded(self) -> StoreKeys:
        if self._keys is None:
            self._keys = self._load()
        return self._keys

    @property
    def store_id(self) -> str:
        return self._loaded().store_id

    def read_again(self) -> None:
        try:
            self._keys = self._load()
        except StoreError:
            if self._keys is None:
                raise

    def wrap(self, data_key: bytes, checkpoint: str) -> tuple[str, bytes]:
        return self._loaded().wrap(data_key, checkpoint)

    def unwrap(self, name: str, wrapped: bytes, checkpoint: str) -> bytes:
        if self._keys is not None:
            try:
                return self._keys.unwrap(name, wrapped, checkpoint)
            except StoreError as error:
                if error.reason is not Reason.KEY_MISSING:
                    raise
        self._keys = self._load()
        return self._keys.unwrap(name, wrapped, checkpoint)


class KeyService:
    """A key service of the admin's, checked against :class:`Wrapper`'s contract."""

    def __init__(self, service: Wrapper) -> None:
        self._service = service
        self.store_id = _checked_id(str(getattr(service, "store_id", "")), "its class")

    def read_again(self) -> None: ...

    def wrap(self, data_key: bytes, checkpoint: str) -> tuple[str, bytes]:
        with _asked():
            name, wrapped = self._service.wrap(data_key, checkpoint)
            if not _NAME.fullmatch(name) or not 0 < len(wrapped) <= MAX_WRAPPED:
                raise _unusable(
                    "the key service gives its key a name that cannot be, or wraps it"
                    f" in more than {MAX_WRAPPED} bytes"
                )
            return name, bytes(wrapped)

    def unwrap(self, name: str, wrapped: bytes, checkpoint: str) -> bytes:
        with _asked():
            return bytes(self._service.unwrap(name, wrapped, checkpoint))


@contextlib.contextmanager
def _asked() -> Iterator[None]:
    try:
        yield
    except ReclaimError:
        raise
    except Exception as error:  # an admin's class may raise what it likes
        raise _unusable("the key service has failed", repr(error)) from error


def load_keys(
    *,
    file: Path | None = None,
    folder: Path | None = None,
    hook: str | None = None,
) -> StoreKeys:
    """The master keys from the one place that is given; else ``StoreError``.

    ``file``: a line ``name key`` for each, the newest last; must be closed to others.
    ``folder``: a mounted Secret: a file for each key, its name the key's; the newest is
    the last by name. ``hook``: ``package.module:Class`` of a key service.
    """
    if sum(place is not None for place in (file, folder, hook)) != 1:
        raise _unusable("its place must be named, and one place only")
    if hook is not None:
        module, _, name = hook.partition(":")
        try:
            return KeyService(getattr(importlib.import_module(module), name)())
        except Exception as error:  # an admin's class may raise what it likes
            raise _unusable(f"{hook} cannot be made", repr(error)) from error
    if file is not None:
        return _of_lines(_read_closed(file), str(file))
    return _of_folder(cast("Path", folder))


def new_key_line(name: str) -> str:
    """A new random key, as a line of a file of keys."""
    return f"{name} {base64.b64encode(crypto.new_key()).decode()}\n"


def key_lines(file: Path) -> str:
    """The lines but the store id's; StoreError: unreadable, or open to others."""
    lines = _read_closed(file).splitlines(keepends=True)
    return "".join(line for line in lines if line.split()[:1] != [STORE_ID])


def _of_lines(text: str, place: str) -> KeyRing:
    keys: dict[str, bytes] = {}
    store = ""
    for line in text.splitlines():
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2 or words[0] in keys:
            raise _unusable(f"{place} has a line that is not one name and one key")
        if words[0] == STORE_ID:
            store = _checked_id(words[1], place)
        else:
            keys[words[0]] = _key_of(words[1].encode(), place)
    return KeyRing(keys, store)


def _of_folder(folder: Path) -> KeyRing:
    try:
        # Names with dots in front are the kubelet's own links.
        found = sorted(p for p in folder.iterdir() if not p.name.startswith("."))
        texts = {path.name: path.read_bytes()[:_MAX_BYTES] for path in found}
    except OSError as error:
        raise _unusable(f"{folder} cannot be read", str(error)) from error
    store = texts.pop(STORE_ID, b"").decode("ascii", "replace").strip()
    keys = {name: _key_of(text, str(folder / name)) for name, text in texts.items()}
    return KeyRing(keys, _checked_id(store, str(folder)))


def _checked_id(store: str, place: str) -> str:
    if store and not identity.is_id(store):
        raise _unusable(f"{place} has a {STORE_ID} that is not 32 hexadecimal digits")
    return store


def _key_of(text: bytes, place: str) -> bytes:
    """32 bytes, raw, as base64 or as hexadecimal digits."""
    if len(text) == crypto.KEY_BYTES:
        return text
    text = text.strip()
    with contextlib.suppress(binascii.Error, ValueError):
        if len(text) == 2 * crypto.KEY_BYTES:
            return binascii.unhexlify(text)
        key = base64.b64decode(text, validate=True)
        if len(key) == crypto.KEY_BYTES:
            return key
    raise _unusable(f"{place} holds something other than a key of 32 bytes")


def _read_closed(path: Path) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        with os.fdopen(descriptor, encoding="ascii") as opened:
            found = os.fstat(opened.fileno())
            if found.st_uid not in (os.geteuid(), 0) or (
                stat.S_IMODE(found.st_mode) & 0o077
            ):
                raise _unusable(f"{path} must belong to its user and be of mode 0600")
            return opened.read(_MAX_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise _unusable(f"{path} cannot be read", str(error)) from error


def _bound(checkpoint: str) -> bytes:
    return _BOUND + checkpoint.encode()


def _unusable(why: str, detail: str = "") -> Unavailable:
    """No key is known at all, which says nothing about any checkpoint."""
    return Unavailable(why, reason=Reason.KEY_MISSING, detail=detail)
