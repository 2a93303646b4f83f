"""A Prometheus that answers well, badly or not at all; and that nobody waits for it."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
from types import SimpleNamespace

import pytest
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

from jupyterhub_gpu_reclaim.common.clock import ManualClock
from jupyterhub_gpu_reclaim.common.http.client import NoResponse
from jupyterhub_gpu_reclaim.common.models import GpuSample, Sample, SessionKey
from jupyterhub_gpu_reclaim.sampling.gpu import NO_ANSWER
from jupyterhub_gpu_reclaim.service.clients.pods import (
    Container,
    Meta,
    Pod,
    Resources,
    Spec,
)
from jupyterhub_gpu_reclaim.service.dcgm.source import MAX_ANSWER, DcgmUse, Prometheus
from tests.support import dcgm

IDLE = GpuSample(uuid="ab" * 16, sm_percent=0.0, memory=7)
UNKNOWN = GpuSample(uuid="ab" * 16, memory=7)


class _Api(RequestHandler):
    async def get(self):
        await self.settings["far"].answer(self)


class Far:
    """A server that answers what a test wants."""

    def __init__(self) -> None:
        self.asked: list[SimpleNamespace] = []
        self.body: bytes = b""
        self.status = 200
        self.headers: dict[str, str] = {}
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    def says(self, series) -> None:
        result = [{"metric": one.metric, "values": one.values} for one in series]
        data = {"resultType": "matrix", "result": result}
        self.body = json.dumps({"status": "success", "data": data}).encode()

    async def answer(self, handler: RequestHandler) -> None:
        self.asked.append(
            SimpleNamespace(
                path=handler.request.path,
                query=handler.get_query_argument("query"),
                time=handler.get_query_argument("time"),
                token=handler.request.headers.get("Authorization"),
            )
        )
        await self.may_answer.wait()
        handler.set_status(self.status)
        for name, value in self.headers.items():
            handler.set_header(name, value)
        handler.write(self.body)


@pytest.fixture
async def far():
    far = Far()
    server = HTTPServer(Application([(".*", _Api)], far=far))
    sockets = bind_sockets(0, "127.0.0.1")
    server.add_sockets(sockets)
    far.url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
    yield far
    far.may_answer.set()
    server.stop()
    await server.close_all_connections()


@pytest.fixture
async def open_():
    made = []

    def make(url: str, **more) -> Prometheus:
        made.append(Prometheus(url, **{"seconds": 10, **more}))
        return made[-1]

    yield make
    for one in made:
        one.close()


def matrix(result: bytes) -> bytes:
    head = b'{"status": "success", "data": {"resultType": "matrix", "result": ['
    return head + result + b"]}}"


async def ask(one: Prometheus):
    return await one.query("up[90s]", 1_700_000_000.0)


async def test_a_question_has_its_time_and_its_answer_the_series(far, open_):
    far.says(dcgm.series(dcgm.PAGE.read_text(), 1_700_000_000.0, honored=True))
    found = await ask(open_(far.url + "/behind/"))
    assert len(found) > 20
    assert found[0].values[-1] == (1_700_000_000.0, "0")
    (asked,) = far.asked
    assert asked.path == "/behind/api/v1/query"
    assert (asked.query, asked.time) == ("up[90s]", "1700000000.000")
    assert asked.token is None


async def test_a_token_is_read_anew_each_time_and_none_is_never_sent(
    far, open_, tmp_path
):
    file = tmp_path / "token"
    one = open_(far.url, token_file=str(file))
    far.says([])
    with pytest.raises(NoResponse, match="cannot be read"):
        await ask(one)
    for token in ("one", "two"):
        file.write_text(f"{token}\n")
        await ask(one)
    for wrong in ("", "se\r\ncret: x", "sécret"):
        file.write_text(wrong)
        with pytest.raises(NoResponse) as told:
            await ask(one)
        assert "cret" not in str(told.value)
    assert [asked.token for asked in far.asked] == ["Bearer one", "Bearer two"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[1]",
        b'{"status": "success"}',
        b'{"status": "success", "data": {"resultType": "matrix", "result": 3}}',
        b'{"status": "success", "data": {"resultType": "vector", "result": []}}',
        b'{"status": "error", "error": "parse error"}',
        matrix(b'{"metric": {"a": 1}, "values": []}'),
        matrix(b'{"metric": {}, "values": [["now", "1"]]}'),
        matrix(b'{"metric": {}, "values": [[1, "1", 2]]}'),
        b'{"a":' + b"[" * 100_000,
        b"\xff\xfe",
    ],
)
async def test_an_answer_that_makes_no_sense_is_none(far, open_, body):
    far.body = body
    with pytest.raises(NoResponse) as told:
        await ask(open_(far.url))
    assert len(str(told.value)) < 300


@pytest.mark.parametrize("status", [302, 400, 401, 422, 503])
async def test_an_error_is_told_in_the_servers_words_and_nobody_is_followed(
    far, open_, status
):
    far.status, far.body = status, b'{"status":"error","error":"too\\nmany samples"}'
    far.headers = {"Location": far.url + "/elsewhere"}
    with pytest.raises(NoResponse, match=f"status {status} too many samples"):
        await ask(open_(far.url))
    assert len(far.asked) == 1


async def test_an_answer_that_is_too_long_is_none_even_where_it_is_packed(far, open_):
    far.body = b" " * (MAX_ANSWER + 1)
    with pytest.raises(NoResponse, match="no answer"):
        await ask(open_(far.url))
    far.headers = {"Content-Encoding": "gzip"}
    far.body = gzip.compress(b" " * 100_000)
    with pytest.raises(NoResponse, match="not understood"):
        await ask(open_(far.url))


async def test_who_does_not_answer_in_time_or_is_not_there_is_silent(far, open_):
    far.may_answer.clear()
    with pytest.raises(NoResponse, match=r"no answer \(Timeout"):
        await ask(open_(far.url, seconds=0.1))
    with pytest.raises(NoResponse, match="refused"):
        await ask(open_("http://127.0.0.1:1"))


# --- what is made of it


def a_pod(name: str = "jupyter-idle", gpus: int = 1, created: str = "") -> Pod:
    limits = {"nvidia.com/gpu": str(gpus)}
    return Pod(
        metadata=Meta(name=name, namespace="jhub", creation_timestamp=created or None),
        spec=Spec(containers=[Container("notebook", Resources(limits=limits))]),
    )


def a_sample(gpus, problem: str = "") -> Sample:
    return Sample(
        incarnation="i", key=SessionKey("ada"), at=1.0, gpus=gpus, problem=problem
    )


@pytest.fixture
async def use(far, open_):
    """A source whose server tells of the recorded page."""
    clock = ManualClock()
    far.clock = clock
    far.says(dcgm.series(dcgm.PAGE.read_text(), clock.now(), honored=False))
    made = []

    def make(*, first: bool = False) -> DcgmUse:
        made.append(
            DcgmUse(open_(far.url), clock, first=first, scrape=30, names=dcgm.NAMES)
        )
        return made[-1]

    yield make
    for one in made:
        await one.close()


async def asked(one: DcgmUse) -> DcgmUse:
    await one.ask()
    return one


async def test_it_fills_in_what_the_agent_does_not_know(use):
    one = await asked(use())
    for gpus in (None, [UNKNOWN]):
        sample = a_sample(gpus, f"api/status: no answer; {NO_ANSWER}")
        found = one.complete(sample, a_pod("jupyter-busy"))
        assert [gpu.sm_percent for gpu in found.gpus] == [86]
        assert found.problem == "api/status: no answer"


async def test_what_the_agent_knows_stays_unless_the_exporter_goes_first(use):
    one, first = await asked(use()), await asked(use(first=True))
    for known in ([IDLE], []):
        sample = a_sample(known)
        assert one.complete(sample, a_pod("jupyter-busy")) is sample
        (found,) = first.complete(sample, a_pod("jupyter-busy")).gpus
        assert found.sm_percent == 86


@pytest.mark.parametrize("pod", ["jupyter-missing", "jupyter-shared", "jupyter-nobody"])
async def test_where_nobody_knows_nothing_is_made_up(use, pod):
    for one in (await asked(use()), await asked(use(first=True))):
        for gpus in ([IDLE], [UNKNOWN]):
            sample = a_sample(gpus, NO_ANSWER)
            assert one.complete(sample, a_pod(pod)) is sample
        found = one.complete(a_sample(None, NO_ANSWER), a_pod(pod))
        assert found.gpus is None or found.gpus[0].sm_percent is None
        assert found.problem == NO_ANSWER


async def test_what_was_told_grows_old_and_a_pod_knows_nothing_of_the_one_before(
    use, far
):
    one, sample = await asked(use()), a_sample(None)
    assert one.complete(sample, a_pod()).gpus
    far.clock.advance(60)
    assert one.complete(sample, a_pod()).gpus
    later = "2023-11-14T22:14:00Z"  # 40 s after the last scrape
    assert one.complete(sample, a_pod(created=later)).gpus is None
    far.clock.advance(31)
    assert one.complete(sample, a_pod()).gpus is None


async def test_a_slow_server_is_asked_once_at_a_time_and_delays_nobody(use, far):
    far.may_answer.clear()
    one = use()
    for _ in range(3):
        answer = one.ask()
        await asyncio.sleep(0.02)
        assert one.complete(a_sample(None), a_pod()).gpus is None
    assert len(far.asked) <= 1
    far.may_answer.set()
    await answer
    assert one.complete(a_sample(None), a_pod()).gpus
    assert len(far.asked) == 1


async def test_the_log_hears_of_a_silence_once_and_of_its_end(use, far, caplog):
    caplog.set_level(logging.INFO, "jupyterhub_gpu_reclaim")
    one, good = use(), far.body
    far.status = 503
    for _ in range(2):
        await asked(one)
    far.status = 200
    far.says([])
    await asked(one)
    ours = [r.getMessage() for r in caplog.records if r.name.startswith("jupyterhub")]
    assert ours == ["- Prometheus does not tell of the GPUs: HTTP status 503"]
    far.body = good
    await asked(one)
    assert "tells of the GPUs again" in caplog.text
    far.says([])
    await asked(one)
    assert "no recent series" in caplog.text
