"""A checkpoint as a file, for the session's user and nobody else."""

from __future__ import annotations

import pytest

from jupyterhub_gpu_reclaim.common.errors import (
    NotFound,
    Refused,
    StoreError,
    Unreachable,
)
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.checkpoints import exports
from tests.controlplane.conftest import KEY
from tests.controlplane.test_save_points import running, saved

WORDS = "correct horse battery"
OTHER = SessionKey("bob")


async def file_of(export) -> bytes:
    return b"".join([piece async for piece in export.pieces()])


async def test_save_point_is_handed_out_piece_by_piece_and_noted(world, monkeypatch):
    monkeypatch.setattr(exports, "EXPORT_PIECE", 3)
    controller, _ = await running(world)
    checkpoint = await saved(world, controller)
    export = await controller.users.export(KEY, checkpoint, WORDS, "ada")
    whole = await file_of(export)
    assert whole == b"head " + checkpoint.encode()
    assert export.length == len(whole)
    (line,) = [one for one in controller.users.audit(KEY) if one.what == "export"]
    assert (line.who, line.message) == ("ada", checkpoint)
    assert WORDS not in repr(controller.users.audit(KEY))


async def test_checkpoint_of_another_session_is_not_there(world):
    controller, _ = await running(world)
    checkpoint = await saved(world, controller)
    await world.running("other", OTHER)
    await world.until(lambda: world.phase(controller, OTHER) == "running")
    for key, name in ((OTHER, checkpoint), (KEY, "another"), (KEY, "../x")):
        with pytest.raises(NotFound) as caught:
            await controller.users.export(key, name, WORDS, key.user)
        assert caught.value.reason is Reason.CHECKPOINT_MISSING
    with pytest.raises(NotFound):
        await controller.users.export(SessionKey("eve"), checkpoint, WORDS, "eve")
    assert not [one for one in controller.users.audit(KEY) if one.what == "export"]


async def test_names_new_account_gets_nothing_of_the_former_one(world):
    controller, _ = await running(world)
    checkpoint = await saved(world, controller)
    controller._sessions.update(KEY, claimed=True)
    with pytest.raises(Refused) as caught:
        await controller.users.export(KEY, checkpoint, WORDS, "ada")
    assert caught.value.reason is Reason.FORMER_ACCOUNT


async def test_file_ends_early_where_something_fails(world):
    controller, _ = await running(world)
    checkpoint = await saved(world, controller)
    agent = controller.users._agent

    async def short(*_):
        return b""

    async def silent(*_):
        raise Unreachable(Reason.AGENT_UNREACHABLE)

    for fails, error in ((short, StoreError), (silent, Unreachable)):
        export = await controller.users.export(KEY, checkpoint, WORDS, "ada")
        export._agent = type("Agent", (), {"exported": staticmethod(fails)})
        with pytest.raises(error):
            await file_of(export)
    assert agent is controller.users._agent
