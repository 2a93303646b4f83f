"""The agent's knowledge of its store, in its state folder: law 14.

The store's id is found in the store, ordered by the service, or said by an
administrator (``store adopt``). Each word has a number, and the higher one holds: an
administrator's is higher than all before. The file is read at each look, for the
command line writes it while the agent runs; where it has gone, what was read last
holds.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

import msgspec

from jupyterhub_gpu_reclaim.common.decoders import json_decoder
from jupyterhub_gpu_reclaim.common.durable import write_durably
from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.models import Value
from jupyterhub_gpu_reclaim.common.reasons import Reason

if TYPE_CHECKING:
    from pathlib import Path

#: In the state folder.
FILE = "store.json"


class Word(Value, frozen=True, kw_only=True):
    """The store that is meant."""

    store: str = ""  #: its id; empty: none is known
    word: int = 0  #: number of the word that says so


class KnownStore:
    """The word that holds, from any thread; see ``store.backends.identified.Known``.

    Args:
        state: the agent's state folder.
    """

    def __init__(self, state: Path) -> None:
        self._file = state / FILE
        self._lock = threading.Lock()
        self._last = Word()

    @property
    def is_kept(self) -> bool:
        """Whether the state folder still has what was read from it."""
        return not self.word().store or self._file.exists()

    def word(self) -> Word:
        """The word that holds now."""
        with contextlib.suppress(OSError, msgspec.DecodeError):  # not there, or not now
            self._last = json_decoder(Word).decode(self._file.read_bytes())
        return self._last

    def expected(self) -> str:
        """The id that the place must have; empty: nothing was begun there."""
        return self.word().store

    def take(self, store: str) -> None:
        """Remember the id that was found, or made.

        Raises:
            StoreError: the state folder cannot be written (``state_full``).
        """
        with self._lock:
            now = self.word()
            new = msgspec.structs.replace(now, store=store)
            if new != now:
                self._write(new)

    def obey(self, store: str, word: int) -> bool:
        """Take a word, unless a later one is known; whether it holds now.

        Raises:
            StoreError: the state folder cannot be written (``state_full``).
        """
        with self._lock:
            now = self.word()
            if word < now.word:
                return False
            if (store, word) != (now.store, now.word):
                self._write(Word(store=store, word=word))
            return True

    def adopt(self, store: str, now: float) -> None:
        """Mean that store from now on, above all words before: an administrator's.

        Args:
            store: its id.
            now: Unix seconds, above any word of before: the one that was known here may
                have gone with the state folder, while the service still has it.

        Raises:
            StoreError: the state folder cannot be written (``state_full``).
        """
        with self._lock:
            word = max(self.word().word + 1, int(now))
            self._write(Word(store=store, word=word))

    def _write(self, word: Word) -> None:
        try:
            write_durably(self._file, msgspec.json.encode(word))
        except OSError as error:
            raise StoreError(Reason.STATE_FULL, detail=str(error)) from error
        self._last = word
