"""Opens blocks of a checkpoint: every byte is authenticated before it is decompressed.

Safe to call from several threads at once. It knows blocks by their place in the index,
and nothing of files.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.store.format import associated_data, crypto, layout
from jupyterhub_gpu_reclaim.store.format.compression import Garbled, Kind, unpack
from jupyterhub_gpu_reclaim.store.format.index import damaged
from jupyterhub_gpu_reclaim.store.packing.packs import BlockOpener, BlockRow

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from numpy.typing import NDArray

    from jupyterhub_gpu_reclaim.store.backend import Backend, Buffer
    from jupyterhub_gpu_reclaim.store.format.associated_data import Origin
    from jupyterhub_gpu_reclaim.store.format.manifest import PackRef


class Blocks:
    """The blocks that a table lists.

    Args:
        backend: where they stand.
        table: of ``index.BLOCKS``, checked.
        packs: that the table's ``pack`` counts in.
        origins: that the packs' ``origin`` counts in.
        chunk_bytes: size of the chunks.
    """

    def __init__(
        self,
        backend: Backend,
        table: NDArray[Any],
        packs: Sequence[PackRef],
        origins: Sequence[Origin],
        chunk_bytes: int,
    ) -> None:
        self._backend = backend
        self._table = table
        self._packs = packs
        self._origins = origins
        self._chunk = chunk_bytes
        self._lock = threading.Lock()
        self._sealers: dict[int, crypto.Sealer] = {}

    def plain(self, block: int, opener: BlockOpener | None = None) -> Buffer:
        """All chunks of a block.

        Args:
            block: its place in the table.
            opener: of this thread; what is returned may lie in it then, and is valid
                until it opens the next.

        Raises:
            StoreError: ``CHECKPOINT_DAMAGED``; nothing of it may be used.
        """
        pack, number, offset, stored, chunks, kind = self._table[block].tolist()
        row = BlockRow(pack, number, offset, stored, chunks, kind)
        ref = self._packs[pack]
        name = layout.pack(self._origins[ref.origin].id, ref.number)
        sealer = self._sealer(pack)
        try:
            if opener is not None:
                data: Buffer = opener.open(name, sealer, row)
            else:
                length = stored - crypto.TAG_BYTES
                bound = associated_data.block(number, Kind(kind), chunks, length)
                sealed = self._backend.read(name, offset, stored)
                data = sealer.open(number, sealed, bound)
            return unpack(Kind(kind), data, chunks * self._chunk)
        except (crypto.Forged, Garbled):
            raise damaged(f"block {number} of {name} is not what was written") from None

    def _sealer(self, pack: int) -> crypto.Sealer:
        with self._lock:
            if pack not in self._sealers:
                ref = self._packs[pack]
                key = self._origins[ref.origin].pack_key(ref.number)
                self._sealers[pack] = crypto.Sealer(key)
            return self._sealers[pack]
