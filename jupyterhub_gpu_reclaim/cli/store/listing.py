"""``store ls`` and ``store show``: checkpoints by their manifests; no pack is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from jupyterhub_gpu_reclaim.cli.output import print_json, print_table, say
from jupyterhub_gpu_reclaim.cli.store.repository import open_store
from jupyterhub_gpu_reclaim.common import text
from jupyterhub_gpu_reclaim.common.errors import NotFound, StoreError
from jupyterhub_gpu_reclaim.common.kept_bytes import kept_bytes

if TYPE_CHECKING:
    import argparse

    from jupyterhub_gpu_reclaim.common.models import CheckpointInfo
    from jupyterhub_gpu_reclaim.store.repository import Repository

_COLUMNS = ("ID", "SESSION", "GEN", "SAVED", "MEMORY", "STORED", "SHARED")


class Row(msgspec.Struct, omit_defaults=True):
    id: str
    info: CheckpointInfo | None = None
    problem: str = ""


def ls(args: argparse.Namespace) -> int:
    # Oldest first; unreadable ones last.
    rows = _rows(open_store(args))
    if args.user:
        rows = [r for r in rows if r.info and r.info.key.user == args.user]
    if args.json:
        print_json(rows)
        return 0
    print_table(
        _COLUMNS, [_cells(row) for row in rows], right="GEN MEMORY STORED SHARED"
    )
    infos = [row.info for row in rows if row.info]
    total = text.size(kept_bytes(infos))
    say(f"{len(rows)} saved, {total} stored")
    return 0


def show(args: argparse.Namespace) -> int:
    objects = open_store(args).objects(args.id)
    if args.json:
        print_json([{"name": name, "bytes": size} for name, size in objects])
    else:
        rows = [(name, text.size(size)) for name, size in objects]
        print_table(("OBJECT", "SIZE"), rows, right="SIZE")
    return 0


def _rows(store: Repository) -> list[Row]:
    rows, broken = [], []
    for id_ in store.ids():
        try:
            rows.append(Row(id_, store.info(id_)))
        except NotFound:
            continue  # deleted in between
        except StoreError as error:
            broken.append(Row(id_, problem=error.message))
    rows.sort(key=lambda row: (row.info.created, row.id) if row.info else (0.0, row.id))
    return rows + broken


def _cells(row: Row) -> tuple[object, ...]:
    info = row.info
    if info is None:
        return (row.id, f"cannot be read: {row.problem}", "", "", "", "", "")
    sizes = (info.logical_bytes, info.stored_bytes, info.deduplicated_bytes)
    saved = text.moment(info.created)
    return (row.id, info.key, info.generation, saved, *map(text.size, sizes))
