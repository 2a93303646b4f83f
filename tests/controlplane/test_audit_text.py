"""History of a user's sessions, in sentences."""

import ast
import inspect
import re
from pathlib import Path

import pytest

import jupyterhub_gpu_reclaim
from jupyterhub_gpu_reclaim.common.models import AuditLine, Decision, SessionKey
from jupyterhub_gpu_reclaim.common.orders import ORDERS
from jupyterhub_gpu_reclaim.controlplane.audit import sentence
from jupyterhub_gpu_reclaim.controlplane.people import UserApi
from jupyterhub_gpu_reclaim.controlplane.session import SessionEvent
from tests.support.simulated import DELETED, KEY

#: Codes that are the plain word for it, too.
PLAIN = {"warned", "started", "stopped", "released", "suspend"}
IDLE = Decision(reclaim=True, code="idle", message="Idle for 31 min.")


@pytest.mark.parametrize("what", [happened.name.lower() for happened in SessionEvent])
def test_everything_that_can_happen_has_a_sentence(what):
    line = AuditLine(at=1.0, key=KEY, who="ada", what=what, message="So it is.")
    told = sentence(line)
    # What ended it is a sentence of its own: that need not have been by themselves.
    assert told.endswith("So it is." if what == "vanished" else ". So it is.")
    assert what not in told or what in PLAIN


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.kind)
def test_each_order_is_carried_out_with_its_fields_and_has_its_sentence(order):
    work = getattr(UserApi, order.kind.replace("-", "_"))
    fields = [*order.__struct_fields__, *(["manages"] if order.trusts else [])]
    inspect.signature(work).bind(None, KEY, by="ada", **dict.fromkeys(fields))
    for word, told in order.history.items():
        line = AuditLine(at=1.0, key=KEY, who="ada", what=word)
        assert sentence(line) == told.replace("{who}", "ada").strip()
    assert order.history


def words_of_the_audit() -> set[str]:
    """Every word that is written in the code for what happened."""
    calls = [
        node
        for path in Path(jupyterhub_gpu_reclaim.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "audit_line"
    ]
    return {
        word.value
        for call in calls
        for word in ast.walk(call.args[2])
        if isinstance(word, ast.Constant) and word.value != "ask to "
    }


def test_every_word_of_the_audit_has_a_sentence():
    words = words_of_the_audit()
    assert len(words) > 20
    for what in words:
        line = AuditLine(at=1.0, key=KEY, who="ada", what=what, message="")
        assert sentence(line) != f"ada: {what}.", what


def test_sentences_name_who_asked_and_for_how_long():
    def told(what, message="", who="ada"):
        return sentence(AuditLine(at=1.0, key=KEY, who=who, what=what, message=message))

    assert told("keep", "cancelled Keep.") == "ada cancelled Keep."
    assert told("ask to resume") == "ada asked to resume it."
    assert told("discard", "ckpt-1") == "ada deleted a checkpoint of it."
    assert told("newer word", who="gpu-reclaim") == "The service: newer word."


async def test_story_of_a_user_tells_reasons_and_numbers_also_after_the_end(world):
    world.change(warn_for=2.0)
    controller, _ = await world.started("tensors")
    world.verdict = IDLE
    await world.reaches(controller, "suspended")
    world.verdict = Decision(reclaim=False, code="recently_active", message="Active.")
    await world.hub.start(KEY)
    await world.reaches(controller, "running")
    await controller.users.suspend(KEY, "root")
    await world.reaches(controller, "suspended")
    await controller.forget(DELETED)
    assert controller.users.sessions() == []
    lines = controller.users.audit("ada", limit=1000)
    told = [line.sentence for line in reversed(lines)]
    assert "Its users were warned. Idle for 31 min. It is suspended in 2 s" in told[1]
    assert "Suspending started. Idle for 31 min." in told
    assert any(
        re.match(r"Its checkpoint is complete\. .* B of it newly written; that", t)
        for t in told
    )
    assert any(re.match(r"It was resumed\. That took \d+ s\.", t) for t in told)
    assert "root asked to suspend it." in told
    # Its end may have been noted meanwhile.
    assert told[-1].startswith(("Its server was deleted", "Its deletion is complete"))
    assert any(t.startswith("Its server was deleted") for t in told[-2:])
    first = controller.users.audit("ada", limit=2)
    second = controller.users.audit("ada", before=first[-1].id, limit=1000)
    assert first + second == lines
    assert controller.users.audit("bob") == []
    assert all(line.key == SessionKey("ada") for line in lines)
