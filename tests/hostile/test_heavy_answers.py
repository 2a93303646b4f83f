"""A user's own server answers the agent with far too much; nobody else notices."""

import contextlib
import gzip
import json
import tracemalloc

import pytest
from tornado.web import Application, HTTPError, RequestHandler

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.clock import SystemClock
from jupyterhub_gpu_reclaim.common.errors import Unreachable
from jupyterhub_gpu_reclaim.common.http.client import Connection
from jupyterhub_gpu_reclaim.common.models import Sample
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.sampling import jupyter_api
from jupyterhub_gpu_reclaim.sampling.sampler import Sampler
from tests.support.nvml import NoCards
from tests.support.served import here, sampled_here, served

KERNEL = {"id": "k", "last_activity": "2026-01-01T00:00:00Z"}
FINE = {
    "api/kernels": [KERNEL],
    "api/status": {"connections": 0},
    "api/terminals": [],
    "api/sessions": [],
}
MIB = 1 << 20


class Told(RequestHandler):
    """Answers what the test wants, whatever the caller accepts."""

    def initialize(self, answers, headers):
        self.answers, self.headers = answers, headers

    def get(self, path):
        if path.startswith("scheduler/"):
            raise HTTPError(404)  # a server without it
        for name, value in self.headers.items():
            self.set_header(name, value)
        answer = self.answers.get(path, {})
        self.finish(answer if isinstance(answer, bytes) else json.dumps(answer))


def serving(answers, **headers):
    asked = {"answers": answers, "headers": headers}
    return served(Application([("/(.*)", Told, asked)]))


async def sampled(*ports: int, rounds: int = 1) -> list[Sample]:
    sampler = Sampler(SystemClock(), NoCards(), answer_seconds=60.0)
    targets = [sampled_here(port, f"user{n}") for n, port in enumerate(ports)]
    try:
        for _ in range(rounds):
            taken = await sampler.sample_all(targets)
        return taken
    finally:
        sampler.client.close()


HEAVY = {
    "one long name for many kernels": {
        "api/kernels": [KERNEL] * 1000,
        "api/sessions": [{"kernel": {"id": "k"}, "path": "n" * (3 * MIB)}],
    },
    "many long ids": {
        "api/kernels": [KERNEL | {"id": f"{n}" + "k" * 50_000} for n in range(70)]
    },
    "many kernels": {"api/kernels": [KERNEL | {"id": f"{n}"} for n in range(5000)]},
    "long states": {"api/kernels": [KERNEL | {"execution_state": "x" * 3 * MIB}]},
    "long terminals": {"api/terminals": [{"name": "t" * 30_000}] * 100},
    "many notebooks": {
        "api/sessions": [
            {"kernel": {"id": "k"}, "path": f"{n}", "type": "notebook"}
            for n in range(20_000)
        ]
    },
}


@pytest.mark.parametrize("answers", HEAVY.values(), ids=HEAVY)
async def test_large_answer_makes_a_small_sample_and_others_are_complete(answers):
    async with serving(FINE | answers) as heavy, serving(FINE) as fine:
        eve, ada = await sampled(heavy, fine)
    assert len(codec.encode(eve)) < 256 << 10
    assert ada.problem == ""
    assert [kernel.id for kernel in ada.kernels] == ["k"]


async def test_reason_of_what_is_missing_is_short():
    path = "p" * 200_000
    notebook = {"kernel": {"id": "k"}, "path": path, "type": "notebook"}
    answers = FINE | {"api/sessions": [notebook], "api/status": "no"}
    async with serving(answers) as port:
        (eve,) = await sampled(port)
        with pytest.raises(Unreachable) as refused:
            await jupyter_api.ask(
                jupyter_api.make_client(),
                here(port),
                "api/contents/" + path,
                jupyter_api.Contents,
                seconds=5.0,
            )
    assert 0 < len(eve.problem) < 2000
    assert len(refused.value.detail) < 1000


async def test_long_names_that_are_real_are_cut():
    path = "deep/" * 100 + "train.ipynb"
    answers = FINE | {"api/sessions": [{"kernel": {"id": "k"}, "path": path}]}
    async with serving(answers) as port:
        (ada,) = await sampled(port)
    (kernel,) = ada.kernels
    assert len(kernel.name) <= 256
    assert kernel.name.endswith("train.ipynb")


async def test_answers_that_are_remembered_have_a_limit():
    """A server that names other notebooks each time fills nobody's memory."""
    sampler, answers = (
        Sampler(SystemClock(), NoCards(), answer_seconds=60.0),
        dict(FINE),
    )
    async with serving(answers) as port:
        target = sampled_here(port)
        for turn in range(10):
            answers["api/sessions"] = [
                {"kernel": None, "path": f"{turn}-{n}", "type": "notebook"}
                for n in range(32)
            ]
            for n in range(32):
                saved = {"last_modified": "2026-01-01T00:00:00Z", "pad": "x" * 50_000}
                answers[f"api/contents/{turn}-{n}"] = saved
            await sampler.sample_all([target])
        (known,) = sampler._known.values()
        sampler.client.close()
    assert sum(len(answer.body) for answer in known.values()) <= MIB


async def test_bomb_is_not_unpacked():
    """995 KiB that are 2 GiB: here 128 MiB, for every answer at once."""
    bomb = gzip.compress(b"[" + b" " * (128 * MIB))
    answers = dict.fromkeys(FINE, bomb)
    async with (
        serving(answers, **{"Content-Encoding": "gzip"}) as port,
        serving(FINE) as fine,
    ):
        tracemalloc.start()
        eve, ada = await sampled(port, fine)
        far = Connection(f"http://127.0.0.1:{port}", dict, Reason.HUB_UNREACHABLE)
        with contextlib.suppress(Unreachable):
            answer = await far.ask("GET", "/api/kernels", limit=10.0)
            assert len(answer.body) <= len(bomb)
        far.close()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 16 * MIB
    assert eve.kernels is None or not eve.jupyter
    assert ada.problem == ""


async def test_session_whose_sample_fails_fails_alone(monkeypatch):
    def measure(init_pid, root_pid, pids):
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr("jupyterhub_gpu_reclaim.sampling.process_tree.measure", measure)
    async with serving(FINE) as port:
        taken = await sampled(port, port)
    assert ["a fault" in one.problem or one.problem != "" for one in taken] == [
        True
    ] * 2
    assert all(one.memory is None for one in taken)
