"""Passes a copy plan to the workers in shared memory.

Both ends are ours, so nothing here is hostile.
"""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from jupyterhub_gpu_reclaim.store.backends.address import open_backend
from jupyterhub_gpu_reclaim.store.format.index import BLOCKS
from jupyterhub_gpu_reclaim.store.format.manifest import Body  # noqa: TC001 - msgspec's
from jupyterhub_gpu_reclaim.store.read.memory_restore import Plan, Source
from jupyterhub_gpu_reclaim.store.workers import channel

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.store.backend import Spec

_LENGTH_BYTES = 4


class _Head(msgspec.Struct):
    spec: dict[str, Any]
    body: Body
    tickets: list[int]
    blocks: int


def share_job(spec: Spec, body: Body, table: Any, planned: Plan) -> int:
    """A new descriptor of memory that holds it."""
    head = msgspec.msgpack.encode(_Head(spec, body, planned.tickets, len(table)))
    parts = [len(head).to_bytes(_LENGTH_BYTES, "little"), head]
    return channel.share("copy-job", [*parts, table.tobytes(), planned.rows.tobytes()])


def read_job(descriptor: int) -> tuple[Source, Plan]:
    """What was shared; the descriptor may be closed then."""
    memory = memoryview(
        mmap.mmap(descriptor, os.fstat(descriptor).st_size, prot=mmap.PROT_READ)
    )
    at = _LENGTH_BYTES + int.from_bytes(memory[:_LENGTH_BYTES], "little")
    head = msgspec.msgpack.decode(memory[_LENGTH_BYTES:at], type=_Head)
    table = np.frombuffer(memory, BLOCKS, head.blocks, at)
    rows = np.frombuffer(memory, np.int64, offset=at + table.nbytes).reshape(-1, 5)
    source = Source(open_backend(head.spec), head.body, table)
    return source, Plan(rows, head.tickets, 0)
