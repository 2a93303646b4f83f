"""The main function of a worker process: a pack writer of a capture, or part of a copy.

It runs right after the fork, in a process of its own with one thread. It waits without
a limit for orders and tickets, because it is killed when it is no longer needed.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import TYPE_CHECKING, Any

import numpy as np

from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux.libc import keep_freed
from jupyterhub_gpu_reclaim.linux.process_memory import ProcessMemory
from jupyterhub_gpu_reclaim.store.backends.address import open_backend
from jupyterhub_gpu_reclaim.store.format.index import BLOCKS
from jupyterhub_gpu_reclaim.store.format.manifest import Body
from jupyterhub_gpu_reclaim.store.packing.base_blocks import (
    BaseBlocks,
    BaseChunks,
    DedupIndex,
)
from jupyterhub_gpu_reclaim.store.packing.blocks import Blocks, BlockSource
from jupyterhub_gpu_reclaim.store.packing.pack_writer import (
    BUFFER_BYTES,
    COUNTERS,
    PackWriter,
)
from jupyterhub_gpu_reclaim.store.read import memory_restore
from jupyterhub_gpu_reclaim.store.workers import channel
from jupyterhub_gpu_reclaim.store.workers.channel import TICKET_BYTES, close_all

if TYPE_CHECKING:
    import socket

_KEEP_BYTES = 1 << 26


def main(end: socket.socket) -> None:
    keep_freed(_KEEP_BYTES)
    try:
        channel.send(end, channel.WorkerReady(os.getpid()))
        _serve(end)
    except ConnectionError:
        pass  # the agent is gone: no report is possible
    except ReclaimError as error:
        _tell(end, error.reason, error.detail, error.facts)
    except Exception as error:  # noqa: BLE001 - told to the agent, whatever it is
        traceback.print_exc(file=sys.stderr)
        why = f"a worker failed with {type(error).__name__}"
        _tell(end, Reason.STORE_FAILED, str(error), {"why": why})


def _serve(end: socket.socket) -> None:
    writer: PackWriter | None = None
    while (received := channel.receive(end)) is not None:
        message, descriptors = received
        match message:
            case channel.BeginCapture():
                writer = _pack_writer(message, descriptors)
            case channel.TakeMemory() if writer is not None:
                _take_memory(writer, message, descriptors)
                channel.send(end, channel.Done())
            case channel.Finish() if writer is not None:
                packs, *columns = writer.report()
                memory = channel.share("report", packs, *columns)
                channel.send(end, channel.Done(), [memory])
                writer.packs.settled(message.seconds)
                channel.send(end, channel.Done())
            case channel.BeginCopy():
                _copy(message, descriptors)
                channel.send(end, channel.Done())


def _pack_writer(message: channel.BeginCapture, descriptors: list[int]) -> PackWriter:
    known = None
    backend = open_backend(message.spec)
    if len(descriptors) > 1:
        kinds = BLOCKS, np.dtype("<u8")
        body, (table, ids) = channel.shared(descriptors[1], Body, *kinds)
        known = BaseChunks(
            backend,
            BaseBlocks(body, table, DedupIndex(ids)),
            channel.map_array(descriptors[2], np.uint8),
        )
    counters = channel.map_array(descriptors[0], np.int64, COUNTERS)[message.row]
    close_all(descriptors)
    return PackWriter(backend, message.recipe, message.row + 1, known, counters)


def _take_memory(
    writer: PackWriter, order: channel.TakeMemory, descriptors: list[int]
) -> None:
    shared, tickets = descriptors
    pid, (areas,) = channel.shared(shared, int, np.dtype("<i8"))
    memory = ProcessMemory(pid, areas)
    buffer = memoryview(bytearray(BUFFER_BYTES))
    while ticket := os.read(tickets, TICKET_BYTES):
        part = channel.part_of(memory.length, int.from_bytes(ticket, "little"))
        writer.put_memory(order.file, order.begin, memory, part, buffer)
    close_all(descriptors)


def _copy(message: channel.BeginCopy, descriptors: list[int]) -> None:
    job, shared, tickets = descriptors
    kinds = BLOCKS, np.dtype("<i8")
    head, (table, all_rows) = channel.shared(job, channel.CopyJob, *kinds)
    counters = channel.map_array(shared, np.int64, COUNTERS)[message.row]
    close_all([job, shared])
    blocks = Blocks(BlockSource(open_backend(head.spec), head.body, table))
    while ticket := os.read(tickets, TICKET_BYTES):
        number = int.from_bytes(ticket, "little")
        rows = all_rows[slice(*head.tickets[number : number + 2])]
        memory_restore.work(blocks, rows, counters)
    close_all([tickets])


def _tell(
    end: socket.socket, reason: Reason, detail: str, facts: dict[str, Any]
) -> None:
    plain = {
        name: fact if isinstance(fact, int | float) else str(fact)
        for name, fact in facts.items()
    }
    channel.send(end, channel.Failed(reason.value, detail, plain))
