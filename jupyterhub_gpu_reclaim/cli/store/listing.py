"""``store ls`` and ``store show``: checkpoints by their manifests; no pack is read."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from jupyterhub_gpu_reclaim.cli.output import print_json, print_table, say
from jupyterhub_gpu_reclaim.cli.store.repository import open_store
from jupyterhub_gpu_reclaim.common import text
from jupyterhub_gpu_reclaim.common.errors import NotFound, StoreError
from jupyterhub_gpu_reclaim.common.kept_bytes import kept_bytes
from jupyterhub_gpu_reclaim.store.format import layout, manifest

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from jupyterhub_gpu_reclaim.cli.store.repository import OpenStore
    from jupyterhub_gpu_reclaim.common.models import CheckpointInfo

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
    store = open_store(args)
    found = store.repository.open(args.id)
    info = found.info
    files = [(name, found.size(name)) for name in found.names()]
    objects = store.repository.objects(args.id)
    data = store.backend.read(layout.manifest(args.id), 0, manifest.MAX_BYTES)
    key = manifest.split(data).key
    if args.json:
        print_json(
            {
                "info": info,
                "master_key": key,
                "files": [{"name": name, "bytes": size} for name, size in files],
                "objects": [{"name": n, "bytes": size} for n, size in objects],
            }
        )
        return 0
    lines = {
        "session": f"{info.key}, generation {info.generation}, {info.incarnation}",
        "saved": f"{_day(info.created)} UTC, stood still for"
        f" {text.duration(info.frozen_seconds)}",
        "memory": f"{text.size(info.logical_bytes)}, {text.size(info.stored_bytes)}"
        f" stored, {text.size(info.deduplicated_bytes)} shared with earlier ones",
        "master key": key,
    }
    for name, value in lines.items():
        say(f"{name:<12} {value}")
    _table("FILE", files)
    _table("OBJECT", objects)
    steps = [(s.title, f"{s.seconds:.2f} s", text.size(s.bytes)) for s in info.steps]
    if steps:
        say("")
        print_table(("STEP", "TIME", "SIZE"), steps, right="TIME SIZE")
    return 0


def _rows(store: OpenStore) -> list[Row]:
    rows, broken = [], []
    for id_ in store.repository.ids():
        try:
            rows.append(Row(id_, store.repository.info(id_)))
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
    cells = (row.id, info.key, info.generation, _day(info.created))
    return (*cells, *map(text.size, sizes))


def _table(title: str, rows: Sequence[tuple[str, int]]) -> None:
    say("")
    print_table((title, "SIZE"), [(n, text.size(s)) for n, s in rows], right="SIZE")


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")
