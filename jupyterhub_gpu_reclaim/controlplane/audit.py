"""The audit log: read forward by programs and backward by people, as sentences.

A line of an unknown kind is shown in the log's own words.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

import msgspec

from jupyterhub_gpu_reclaim.common.errors import ReclaimError
from jupyterhub_gpu_reclaim.common.orders import ORDERS
from jupyterhub_gpu_reclaim.controlplane import schema
from jupyterhub_gpu_reclaim.controlplane.sessions import SERVICE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from jupyterhub_gpu_reclaim.common.models import AuditLine
    from jupyterhub_gpu_reclaim.controlplane.journal import Journal

_log = logging.getLogger(__name__)

#: Seconds between two looks for new lines; and after a failure.
PACE, PAUSE = 1.0, 30.0


@contextlib.asynccontextmanager
async def following(
    journal: Journal, tell: Callable[[AuditLine], None]
) -> AsyncIterator[None]:
    """Pass each new line on, in order, while the block lasts and once at its end.

    ``tell`` may raise ``OSError``: it is told that line again later.
    """
    seen = max((line.id for line in journal.audit(limit=1)), default=0)

    def look() -> None:
        nonlocal seen
        for line in after(journal, seen):
            tell(line)
            seen = line.id

    async def watch() -> None:
        while True:
            pause = PACE
            try:
                look()
            except (OSError, ReclaimError) as error:
                _log.warning("audit: not told now, later again: %s", error)
                pause = PAUSE
            await asyncio.sleep(pause)

    task = asyncio.create_task(watch())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(OSError, ReclaimError):
            look()


def after(journal: Journal, number: int, limit: int = 100) -> list[AuditLine]:
    table = schema.audit
    query = table.select().where(table.c.id > number).order_by(table.c.id).limit(limit)
    return [schema.audit_row(row) for row in journal.read(query)]


#: Sentences for the words of the audit; ``{who}`` begins a sentence.
SENTENCES = {
    **{word: told for each in ORDERS for word, told in each.history.items()},
    "save point": "It was saved while it ran:",
    "save point failed": "It could not be saved while it ran.",
    "call off": "What was asked could not be begun, and was called off.",
    "waits for a GPU": "It waits for a GPU.",
    "naps": "It began to nap: its GPU memory was moved to the machine's memory.",
    "wakes": "It woke up and got its GPU memory back.",
    "makes room": "It was made to nap so that another session could wake.",
    "nap failed": "It could not nap.",
    "warned": "Its users were warned.",
    "stays": "The warning was withdrawn.",
    "suspend": "Suspending started.",
    "committed": "Its checkpoint is complete.",
    "released": "It was suspended, and its GPU and memory are free.",
    "capture_failed": "It could not be suspended.",
    "thawed": "The suspend was undone, and it kept running.",
    "restore": "Resuming started.",
    "restored": "It was resumed.",
    "restore_failed": "It could not be resumed; its checkpoint was kept.",
    "started": "It was started.",
    "stopped": "It was stopped.",
    "vanished": "Its programs ended by themselves.",
    "report": "Programs of it run that the Hub does not know of.",
    "lost": "Its programs ended; the checkpoint that it goes back to was kept.",
    "discarded": "Its checkpoint was deleted.",
    "put_aside": "{who} started fresh; its checkpoint was put aside.",
    "found_running": "It was found running.",
    "found_saved": "It was found suspended.",
    "brought_back": "Another checkpoint of it was chosen.",
    "went back": "It went back to a save point.",
    "retention": "A checkpoint that had been put aside was deleted.",
    "deletion ahead": "A checkpoint of it will be deleted.",
    "new account": "The former account's session was put aside.",
    "user deleted": "{who} deleted its user; what is suspended is kept for a while.",
    "forget": "Its server was deleted, and all its checkpoints.",
    "forgotten": "Its deletion is complete.",
}


def told(line: AuditLine) -> AuditLine:
    return msgspec.structs.replace(line, sentence=sentence(line))


def sentence(line: AuditLine) -> str:
    who = "The service" if line.who == SERVICE else line.who
    beginning = SENTENCES.get(line.what, f"{who}: {line.what}.").replace("{who}", who)
    if line.what in {"discard", "ask to bring back"}:
        return beginning  # the message is an id
    if line.what in {"vanished", "report"} and line.message:
        return line.message  # the whole of it; "vanished" need not be by themselves
    return f"{beginning} {line.message}".strip()
