"""The API for persons and programs: what they see, what they may do, and errors."""

import json

import msgspec
import pytest

from jupyterhub_gpu_reclaim.common.models import (
    Decision,
    Failure,
    GpuSample,
    KeptState,
    Phase,
    SessionKey,
    SessionView,
)
from jupyterhub_gpu_reclaim.common.orders import LONGEST_KEEP
from jupyterhub_gpu_reclaim.service.api import base

ADA = SessionKey("ada")


def views(response) -> list[SessionView]:
    return msgspec.json.decode(response.body, type=list[SessionView])


async def test_sessions_of_a_user_are_their_own_only(service):
    service.control.put("ada")
    service.control.put("ada", "train")
    service.control.put("bob")
    response = await service.call("api/sessions")
    assert response.code == 200
    assert [str(v.key) for v in views(response)] == ["ada/", "ada/train"]


async def test_sessions_with_manage_scope_are_all(service):
    service.control.put("ada")
    service.control.put("bob")
    response = await service.call("api/sessions", "token-root")
    assert [v.key.user for v in views(response)] == ["ada", "bob"]


async def test_session_of_somebody_else_looks_like_none_at_all(service, failure):
    service.control.put("bob")
    there = await service.call("api/sessions/bob/-")
    service.control.views.clear()
    missing = await service.call("api/sessions/bob/-")
    assert there.code == missing.code == 404
    assert there.body == missing.body
    assert failure(there).code == "unknown_session"


async def test_server_called_dash_is_not_the_default_server(service):
    service.control.put("ada")
    service.control.put("ada", "-")
    for path, server in (("-", ""), ("--", "-")):
        found = await service.call(f"api/sessions/ada/{path}")
        assert msgspec.json.decode(found.body, type=SessionView).key.server == server


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "suspend"),
        ("POST", "resume"),
        ("POST", "keep"),
        ("POST", "start-fresh"),
        ("POST", "delete"),
        ("GET", "orders"),
        ("GET", "why"),
    ],
)
async def test_action_on_somebody_elses_session_is_not_found(service, method, path):
    service.control.put("bob")
    body = {"seconds": 60}
    response = await service.call(
        f"api/sessions/bob/-/{path}", body=body, method=method
    )
    assert response.code == 404
    assert service.control.calls == []


#: Orders: whether only managers give it, its body, the status, and the call that it is.
ORDERED = {
    "suspend": (False, {}, 202, ("suspend", ADA)),
    "keep": (False, {"seconds": 3600}, 200, ("keep", ADA, 3600.0)),
    "nap": (True, {}, 202, ("nap", ADA)),
    "wake": (True, {}, 202, ("wake", ADA)),
    "renew-login": (True, {}, 200, ("renew_login", ADA)),
    "end-tree": (True, {"incarnation": "i2"}, 200, ("end_tree", ADA, "i2")),
}


@pytest.mark.parametrize("kind", ORDERED)
async def test_order_is_given_in_the_name_of_who_may_give_it(service, failure, kind):
    managers, body, status, call = ORDERED[kind]
    path = f"api/sessions/ada/-/{kind}"
    for token, by in (("token-ada", "ada"), ("token-root", "root")):
        service.control.put("ada", phase=Phase.RUNNING)
        service.control.calls.clear()
        done = await service.call(path, token, "POST", body)
        if managers and by == "ada":
            assert (done.code, failure(done).code) == (403, "forbidden")
            assert service.control.calls == []
        else:
            assert done.code == status
            assert msgspec.json.decode(done.body, type=SessionView).key == ADA
            assert service.control.calls == [(*call, by)]


STATES = [
    KeptState(id="c2", generation=2, created=1.7e9, keeping="current"),
    KeptState(id="c1", generation=1, created=1.6e9, keeping="aside", expires=2e9),
]


async def test_saved_states_are_listed_and_one_is_brought_back(service, failure):
    service.control.put("ada", phase=Phase.SUSPENDED, kept=STATES)
    shown = await service.call("api/sessions/ada/-")
    assert [one["id"] for one in json.loads(shown.body)["kept"]] == ["c2", "c1"]
    path = "api/sessions/ada/-/bring-back"
    done = await service.call(path, method="POST", body={"checkpoint": "c1"})
    assert done.code == 202
    assert service.control.calls == [("bring_back", ADA, "c1", "ada", False)]
    service.control.put("ada", phase=Phase.RUNNING)
    body = {"checkpoint": "c1"}
    refused = await service.call(path, method="POST", body=body)
    assert (refused.code, failure(refused).code) == (409, "session_runs")
    body |= {"save_running": True}
    assert (await service.call(path, method="POST", body=body)).code == 202


async def test_saved_states_of_others_are_for_managers(service):
    service.control.put("bob", phase=Phase.SUSPENDED, kept=STATES)
    path, body = "api/sessions/bob/-/bring-back", {"checkpoint": "c1"}
    assert (await service.call(path, method="POST", body=body)).code == 404
    assert service.control.calls == []
    done = await service.call(path, "token-root", method="POST", body=body)
    assert done.code == 202
    [(*_, by, _)] = service.control.calls
    assert by == "root"


async def test_service_named_like_a_user_does_not_own_their_sessions(service):
    service.control.put("ada")
    response = await service.call("api/sessions", "token-service-ada")
    assert response.code == 200
    assert views(response) == []


@pytest.mark.parametrize(
    ("token", "code"),
    [("", "unauthenticated"), ("wrong", "token_unknown"), ("a" * 40, "token_unknown")],
)
async def test_call_without_a_valid_token_says_what_is_wrong(
    service, failure, token, code
):
    response = await service.call("api/sessions", token)
    assert failure(response, 401).code == code
    assert "WWW-Authenticate" in response.headers


async def test_call_without_access_to_the_service_is_forbidden(service, failure):
    response = await service.call("api/sessions", "token-stranger")
    assert failure(response, 403).code == "forbidden"


async def test_call_while_the_hub_is_broken_says_that_the_hub_does_not_answer(
    service, failure
):
    service.hub.settings["broken"] = True
    response = await service.call("api/sessions")
    assert failure(response, 503).code == "hub_unreachable"
    assert failure(response).retryable


async def test_call_while_the_hub_is_silent_says_so_within_a_limit(
    service, failure, monkeypatch
):
    monkeypatch.setattr(base, "LOGIN_LIMIT", 0.3)
    service.hub.settings["silent"] = True
    response = await service.call("api/sessions")
    assert failure(response, 503).code == "hub_unreachable"


async def test_suspend_in_the_wrong_phase_is_refused_with_its_reason(service, failure):
    service.control.put("ada", phase=Phase.RESUMING)
    response = await service.call("api/sessions/ada/-/suspend", method="POST")
    assert failure(response, 409).code == "wrong_phase"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"{",
        b"[]",
        {},
        {"seconds": "1"},
        {"seconds": -1},
        {"seconds": 1e99},
    ],
)
async def test_keep_with_a_body_that_does_not_fit_is_a_bad_request(
    service, failure, body
):
    service.control.put("ada")
    response = await service.call("api/sessions/ada/-/keep", method="POST", body=body)
    assert failure(response, 400).code == "invalid"
    assert "Traceback" not in response.body.decode()
    assert service.control.calls == []


async def test_limits_of_keep_are_told_whether_a_manager_asks(service):
    service.control.put("ada")
    for token, managed in (("token-ada", 0), ("token-root", 1)):
        body = {"seconds": 300 * 86400}
        await service.call("api/sessions/ada/-/keep", token, method="POST", body=body)
        assert service.control.managed_keeps == managed


async def test_saved_states_are_deleted_one_or_all(service):
    service.control.put("ada")
    path = "api/sessions/ada/-/delete"
    one = await service.call(path, method="POST", body={"checkpoint": "c7"})
    everything = await service.call(path, method="POST", body={"everything": True})
    assert (one.code, everything.code) == (200, 200)
    assert json.loads(one.body) == {
        "deleted": ["c7"],
        "kept": [
            {
                "checkpoint": "c1",
                "until": 1_700_000_600.0,
                "why": "The session came back from it; it is kept in case it ends.",
            }
        ],
    }
    assert json.loads(everything.body) == {"deleted": ["c7"], "kept": []}
    assert service.control.calls == [
        ("discard", ADA, "ada", "c7"),
        ("discard", ADA, "ada", ""),
    ]


async def test_orders_that_make_sense_are_offered_to_each_who_may_give_them(service):
    service.control.put("ada", gpus=[GpuSample(uuid="a", name="A100")])
    path = "api/sessions/ada/-/orders"
    for token, more, longest in (
        ("token-ada", set(), 2 * 3600.0),
        ("token-root", {"nap", "end-tree"}, LONGEST_KEEP),
    ):
        told = json.loads((await service.call(path, token)).body)
        assert more <= told["orders"].keys()
        assert bool(more) == ("nap" in told["orders"])
        assert told["longest_keep"] == longest
        assert told["orders"]["suspend"] == {
            "label": "Suspend now",
            "done": "Suspending the session.",
            "stops": True,
        }
        assert "resume" not in told["orders"]


async def test_why_tells_the_reasons(service):
    service.control.put("ada")
    response = await service.call("api/sessions/ada/-/why")
    found = msgspec.json.decode(response.body, type=list[Decision])
    assert [verdict.code for verdict in found] == ["kernel_busy"]


async def test_why_tells_the_failure_of_a_session_that_is_suspended(service):
    lost = Failure(code="file_missing", message="It is gone.", hint="Put it back.")
    service.control.put("ada", phase=Phase.SUSPENDED, failure=lost)
    service.control.why = lambda key: []
    response = await service.call("api/sessions/ada/-/why")
    [found] = msgspec.json.decode(response.body, type=list[Decision])
    assert (found.code, found.message) == ("file_missing", "It is gone. Put it back.")


async def test_names_with_unusual_characters_survive_the_path(service):
    service.control.put("ada lovelace@x.org/ü", "a b")
    response = await service.call(
        "api/sessions/ada%20lovelace%40x.org%2F%C3%BC/a%20b", "token-root"
    )
    assert response.code == 200
    key = msgspec.json.decode(response.body, type=SessionView).key
    assert key == SessionKey("ada lovelace@x.org/ü", "a b")


async def test_path_that_is_not_utf8_is_a_bad_request(service, failure):
    response = await service.call("api/sessions/%ff%fe/-", "token-root")
    assert failure(response, 400).code == "invalid"


async def test_method_that_a_route_lacks_names_those_it_has(service, failure):
    response = await service.call("api/sessions/ada/-/suspend", method="GET")
    assert response.code == 405
    assert response.headers["Allow"] == "POST"
    assert failure(response).code == "invalid"


async def test_address_that_is_not_there_is_not_found_as_json(service, failure):
    response = await service.call("api/nothing")
    assert failure(response, 404).message == "There is nothing at this address."


async def test_surprise_is_told_without_details(service, failure, caplog):
    service.control.views = None  # what no code of ours expects
    response = await service.call("api/sessions")
    assert failure(response, 500).code == "internal"
    assert b"NoneType" not in response.body
    assert "NoneType" in caplog.text


async def test_answers_are_not_cached_and_not_framed(service):
    response = await service.call("api/sessions")
    assert response.headers["Cache-Control"] == "no-store"
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert "frame-ancestors 'none'" in response.headers["Content-Security-Policy"]


async def test_opt_out_is_for_managers_and_may_be_taken_back_by_all(service, failure):
    service.control.put("ada")
    path = "api/sessions/ada/-/opt-out"
    refused = await service.call(path, method="POST", body={"out": True})
    assert refused.code == 403
    assert failure(refused).code == "forbidden"
    done = await service.call(path, "token-root", "POST", {"out": True})
    back = await service.call(path, method="POST", body={"out": False})
    assert (done.code, back.code) == (200, 200)
    assert service.control.calls == [
        ("opt_out", ADA, True, "root"),
        ("opt_out", ADA, False, "ada"),
    ]


async def test_history_is_told_up_to_a_bound(service, failure):
    service.control.put("ada")
    path = "api/sessions/ada/-/history"
    for query, lines in (("", 100), ("?limit=3", 3), ("?limit=99999", 1000)):
        response = await service.call(path + query)
        assert len(json.loads(response.body)) == lines
    assert (await service.call(path + "?limit=x")).code == 400
    missing = await service.call("api/sessions/ada/none/history")
    assert failure(missing).code == "unknown_session"


async def test_save_point_may_be_given_a_name(service):
    service.control.put("ada")
    one = "api/sessions/ada/-/save"
    assert (await service.call(one, method="POST", body="")).code == 202
    body = {"name": "before the upgrade"}
    assert (await service.call(one, method="POST", body=body)).code == 202
    key = SessionKey("ada")
    assert service.control.calls == [
        ("save", key, "ada"),
        ("save", key, "ada", "before the upgrade"),
    ]
    for wrong in ("[]", '{"name": 3}', "x"):
        assert (await service.call(one, method="POST", body=wrong)).code == 400
