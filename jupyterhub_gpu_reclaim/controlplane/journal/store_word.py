"""The journal's row that says which store is meant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.controlplane.journal import schema
from jupyterhub_gpu_reclaim.controlplane.model.rows import MeantStore

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.controlplane.journal.journal import Journal


def meant(journal: Journal) -> MeantStore | None:
    """Return the store that is meant; None if that is not known yet."""
    for row in journal.read(schema.store.select()):
        return MeantStore(row["store"], row["word"], row["begun"])
    return None


def mean(journal: Journal, store: MeantStore) -> None:
    """Write down the store that is meant from now on."""
    journal.write(
        schema.store.delete(), schema.store.insert().values(id=1, **store._asdict())
    )
