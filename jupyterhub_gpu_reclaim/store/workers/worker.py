"""The main function of a worker process: a pack writer of a capture, or part of a copy.

It runs right after the fork, in a process of its own with one thread. It waits without
a limit for pipes and tokens, because it is killed when it is no longer needed.
"""

from __future__ import annotations

import ctypes
import os
import sys
import traceback
from typing import TYPE_CHECKING, Any

from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.backends.address import open_backend
from jupyterhub_gpu_reclaim.store.packing import dedup_index
from jupyterhub_gpu_reclaim.store.packing.pack_writer import SLOT_BYTES, Lane
from jupyterhub_gpu_reclaim.store.packing.packs import BlockOpener
from jupyterhub_gpu_reclaim.store.packing.splice import Splicer
from jupyterhub_gpu_reclaim.store.read import memory_restore
from jupyterhub_gpu_reclaim.store.workers import channel, counters
from jupyterhub_gpu_reclaim.store.workers.channel import close_all
from jupyterhub_gpu_reclaim.store.workers.copy_job import read_job

if TYPE_CHECKING:
    import socket

#: Of a token, once the pipe has ended.
END = (1 << 64) - 1
TOKEN_BYTES = 8
TICKET_BYTES = 4

# From malloc.h: keep what was freed, so that buffers do not fault in again and again.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEEP_BYTES = 1 << 26


def main(end: socket.socket) -> None:
    """Do what comes over the channel, until it ends."""
    libc = ctypes.CDLL(None)
    for option in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD):
        libc.mallopt(option, _KEEP_BYTES)
    try:
        channel.send(end, channel.Hello(os.getpid()))
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
    lane: Lane | None = None
    chunk_bytes = 0
    while (received := channel.receive(end)) is not None:
        message, descriptors = received
        match message:
            case channel.Capture():
                lane = _lane(message, descriptors)
                chunk_bytes = message.recipe.chunk_bytes
            case channel.TakePipe() if lane is not None:
                total = _take(lane, message.file, chunk_bytes, descriptors)
                # CRIU must see it when the pipe has no reader any more.
                close_all(descriptors)
                channel.send(end, channel.Taken(total))
            case channel.Finish() if lane is not None:
                memory = channel.share("lane-report", lane.report().parts())
                channel.send(end, channel.Reported(), [memory])
                lane.settled(message.seconds)
                channel.send(end, channel.Settled())
            case channel.Copy():
                _copy(message, descriptors)
                channel.send(end, channel.Copied())


def _lane(message: channel.Capture, descriptors: list[int]) -> Lane:
    table = dedup_index.of_descriptor(descriptors[1]) if len(descriptors) > 1 else None
    meter = counters.mapped(descriptors[0])[message.row]
    close_all(descriptors)
    backend = open_backend(message.spec)
    return Lane(backend, message.recipe, message.lane, table, meter)


def _take(lane: Lane, file: int, chunk_bytes: int, descriptors: list[int]) -> int:
    """Share a pipe with the other workers: the token's holder takes a buffer."""
    pipe, token_in, token_out = descriptors
    slot = memoryview(bytearray(SLOT_BYTES))
    total = 0
    with Splicer(pipe) as splicer:
        while True:
            offset = int.from_bytes(os.read(token_in, TOKEN_BYTES), "little")
            if offset == END:
                os.write(token_out, END.to_bytes(TOKEN_BYTES, "little"))
                return total
            length = splicer.take(slot)
            after = END if length < SLOT_BYTES else offset + length
            os.write(token_out, after.to_bytes(TOKEN_BYTES, "little"))
            if after == END:
                total = offset + length
            if length:
                splicer.read(slot)
                whole = length + -length % chunk_bytes
                slot[length:whole] = bytes(whole - length)
                lane.put(file, offset // chunk_bytes, slot[:whole], length)


def _copy(message: channel.Copy, descriptors: list[int]) -> None:
    job, meter, tickets = descriptors
    source, planned = read_job(job)
    counter = counters.mapped(meter)[message.row]
    close_all([job, meter])
    blocks, opener = source.blocks(), BlockOpener(source.backend)
    while ticket := os.read(tickets, TICKET_BYTES):
        number = int.from_bytes(ticket, "little")
        rows = planned.rows[slice(*planned.tickets[number : number + 2])]
        memory_restore.work(blocks, opener, rows, counter)
    close_all([tickets])


def _tell(
    end: socket.socket, reason: Reason, detail: str, facts: dict[str, Any]
) -> None:
    plain = {
        name: fact if isinstance(fact, int | float) else str(fact)
        for name, fact in facts.items()
    }
    channel.send(end, channel.Failed(reason.value, detail, plain))
