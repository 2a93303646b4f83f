"""The page of what comes back, from the kinds and the tables of their tests."""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from pieces import page, table

from jupyterhub_gpu_reclaim.checkpoint.kinds.table import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.checkpoint.kinds import Kind

_TABLES = "tests.checkpoint.kinds"
_ABOUT = """
Your kernels come back with their variables, and so do the programs beside them. What
they have in memory, their open files, pipes, timers and the connections between them
are as they were. Connections to other machines are closed, as after a network that was
away: most programs connect again.

**Nothing is ended before its return has been tried.** The saved programs are brought
back beside those that stand still, judged, and thrown away. Whatever would not come
back is refused, the session goes on, and its page says which program it is and why
([`would_not_return`](../how-to/messages.md#while-it-is-being-suspended)).

## Programs that were tried

On 2026-11-26, on Debian 12 through a real agent: each at work, suspended and brought
back three times where nothing else is said, with what it held compared.
"""
_TRIED_AGAIN = "kept; a save that meets a client not accepted yet is tried again"
_MANY_FILES = (
    "kept by saves and suspends; going back, files that they had not open are as they"
    " are now, so that they may end with an error"
)
_PROGRAMS = (
    ("Redis 7.0 with an append-only file; MariaDB 10.11 with a client", "kept"),
    ("SQLite in WAL mode", "kept"),
    ("R 4.2 with a cluster and forked workers; Octave 7.3; SBCL 2.2", "kept"),
    ("Node.js 20 with workers and watched files; Java 17, jshell", "kept"),
    ("tmux with vim and top; GNU screen 4.9", "kept"),
    ("multiprocessing, all start methods; joblib 1.6 with loky", "kept"),
    ("dask.distributed 2026.8; PySpark 4.3 on the machine itself", "kept"),
    ("PyTorch 2.13 with loader workers (fork, spawn); JAX 0.10; numba 0.68", "kept"),
    ("pyarrow 26; DuckDB 2.0; polars 2.1; h5py 3.16", "kept"),
    ("aiofile; caio; uvloop", "kept"),
    (
        "gunicorn 27, uvicorn 0.54 (twice)",
        "kept; uvicorn closed a connection that had been idle for too long",
    ),
)
#: Of the second list.
_DAY = (
    (
        "SQLite: WAL, delete and truncate mode, mmap, two programs, its command line",
        "kept",
    ),
    ("LMDB, shelve, dbm, HDF5, DuckDB, zip, tar, gzip, CSV, Parquet, Arrow", "kept"),
    ("numpy memmaps, pandas, polars, scikit-learn, scipy, joblib", "kept"),
    ("multiprocessing, concurrent.futures, asyncio with subprocesses", "kept"),
    ("IPython: a kernel in a cell with a widget, two terminals; debugpy", "kept"),
    ("HTTP (threads, keep-alive), aiohttp and websockets, uvicorn, Flask, TLS", "kept"),
    (
        "Chromium by its debugging protocol; Node.js with worker, child and watch",
        "kept",
    ),
    ("bash with jobs, traps and pipes; Perl; FIFOs, socat, flock; coprocesses", "kept"),
    ("vim, less, top, watch and gdb in terminals; tmux; stopped and lost jobs", "kept"),
    (
        "rotating logs, `tail -F`, inotifywait, watchdog, deleted and hidden files",
        "kept",
    ),
    ("POSIX semaphores, shared memory, timers and condition variables in C", "kept"),
    ("`sort`, `xargs`, `xz`, `split`, `zip`, venv, cron-like loops", "kept"),
    ("gpg-agent and ssh-agent, asked again and again", _TRIED_AGAIN),
    (
        "`screen -X`, without a pause",
        "kept in one run of two; refused in the other, and the session ran on",
    ),
    ("`git clone` and `gc`, `make -j`, `rsync`, `tar`", _MANY_FILES),
    ("a slow download from a server that has sent all and closed", "reads as reset"),
)
_ON_KINDS = """
A second list on 2026-11-29: five save points and three suspends each while at work,
then back to the second save point, with all that it computed and wrote compared.

{day}

Not tried: PostgreSQL and other programs that change their user (these tests ran without
CAP_SYS_RESOURCE), Julia itself, ray, programs on FUSE or NFS.

`script` (util-linux) stands still after a return, as after SIGSTOP and SIGCONT: it
takes the stop of its shell for Ctrl-Z. `kill -CONT` lets it go on.

What the session itself has mounted, which takes root with CAP_SYS_ADMIN, is not mounted
again. A session with a file open there is suspended, and its return refused
(`file_missing`): end such programs before, or mount it where the session is started.

## Going back to a save point

A save point is of a session that has gone on, and so have its files ([what it keeps of
them](../explanation/save-points.md#files-that-went-on)). Where they are as they were,
it comes back like any other. Tried with a real agent, and at every step of putting
files back (`tests/node/test_going_back.py`, `tests/checkpoint/test_put_back.py`):

{going_back}

*Asked* is: nothing is started before its user has said yes (`files_newer`); then the
newer files lie in a folder beside, and the programs go on with those of then.

## Kind by kind

Below is what Linux gives a program. Each row is a test, but for a few, marked as such,
that these tests do not run on. This page is generated from their tables,
`tests/checkpoint/kinds/`.
"""
_GOING_BACK = (
    ("SQLite in a transaction, in WAL or delete mode", "committed, more rows", "asked"),
    (
        "SQLite between transactions, in delete mode",
        "more rows",
        "comes back; they stay, as SQLite reads its file again",
    ),
    ("a file or log, opened for writing (`w`, `r+`)", "written", "asked"),
    ("a log, opened to append (`a`)", "grown", "comes back; it stays as it is"),
    ("the same", "cut, rotated or replaced", "asked"),
    (
        "a shared mapping, or one to read of what the session writes (SQLite, LMDB)",
        "written",
        "asked",
    ),
    ("any of these", "deleted, also with its folder", "asked; both are made again"),
    (
        "any of these, above the limit of what is kept",
        "written",
        "refused by name (`file_changed`)",
    ),
    (
        "any of these",
        "another session has it open",
        "refused with that program's name (`file_in_use`)",
    ),
    (
        "files one after the other (`git clone`, `make`, `rsync`, `tar`)",
        "gone on, or begun again",
        "comes back; what it had not open is as it is now, so it may end",
    ),
    ("a folder that it had open", "deleted", "refused by name (`file_missing`)"),
    ("data mapped to be read alone", "written", "refused by name (`file_changed`)"),
    ("a file that is only read", "written, not shorter", "comes back, and reads on"),
    ("the same", "shorter", "refused by name (`file_shrank`)"),
    ("a library", "replaced", "refused by name (`library_changed`)"),
)
_ON_ORDER = """
## What is looked after, and when

CRIU saves and makes again what is not listed here. This is the table that a suspend and
a return go through (`jupyterhub_gpu_reclaim/checkpoint/kinds/table.py`, which says why
the order is so). *Refused* is what keeps a session from being suspended while it still
runs; *frozen* and *saved* are a suspend; *prepared* is before CRIU makes the programs
again, and *given back* after that.
"""
_WHEN = {
    "preflight": "refused",
    "before_dump": "frozen",
    "save": "saved",
    "rewrite": "prepared",
    "after_restore": "given back",
}
#: Each outcome with its title, and what is said of all of it.
_PARTS = {
    "kept": ("Kept", "It is the same after the return as before it."),
    "refused": (
        "Refused",
        "The session is not suspended, and goes on; its page names program and reason.",
    ),
    "lost": (
        "Lost",
        "After the return it is not there, or is another one: the note says which.",
    ),
}


def what_comes_back() -> str:
    """Every kind of thing that a program can have, and what becomes of it."""
    lines: list[str] = []
    for outcome, (title, about) in _PARTS.items():
        there = [
            (subject, [kind for kind in kinds if kind.outcome == outcome])
            for subject, kinds in _tables()
        ]
        if any(kinds for _, kinds in there):
            lines += [f"## {title}", "", about, ""]
        for subject, kinds in there:
            lines += _section(subject, kinds)
    programs = table(("program", "outcome"), *_PROGRAMS)
    back = "\n".join(table(("what it had", "since then", "going back"), *_GOING_BACK))
    day = "\n".join(table(("program", "outcome"), *_DAY))
    kinds = _ON_KINDS.format(going_back=back, day=day)
    about = (*programs, *kinds.rstrip().split("\n"), "")
    return page("What comes back", _ABOUT, *about, *lines, *_by_kind())


def _by_kind() -> Iterator[str]:
    """The kinds that are looked after, in their order, and when."""
    yield from _ON_ORDER.strip().split("\n")
    asked = [
        (
            kind.__doc__.partition("\n")[0].removesuffix(".").replace("``", "`"),
            ", ".join(when for name, when in _WHEN.items() if _is_asked(kind, name)),
        )
        for kind in KINDS
    ]
    yield ""
    yield from table(("what a program has", "looked after"), *asked)


def _is_asked(kind: type, name: str) -> bool:
    return name in vars(kind) or (name == "before_dump" and kind.asked_again)


def _section(subject: str, kinds: Sequence[Kind]) -> Iterator[str]:
    """One table's rows: those that need a word, then the others."""
    told = [(kind.name, kind.note) for kind in kinds if kind.note]
    plain = [kind.name for kind in kinds if not kind.note]
    if kinds:
        yield from (f"### {subject}", "")
    if told:
        yield from (*table(("what a program has", "what you should know"), *told), "")
    if plain:
        text = f"{'Also: ' if told else ''}{'; '.join(plain)}."
        yield from (*textwrap.wrap(text, 88, break_on_hyphens=False), "")


def _tables() -> Iterator[tuple[str, Sequence[Kind]]]:
    """Subject and rows of each table that is there."""
    root = str(Path(__file__).parents[1])
    if root not in sys.path:
        sys.path.append(root)
    package = importlib.import_module(_TABLES)
    for found in sorted(one.name for one in pkgutil.iter_modules(package.__path__)):
        module = importlib.import_module(f"{_TABLES}.{found}")
        yield re.split("[:;.]", module.__doc__ or found)[0], module.KINDS
