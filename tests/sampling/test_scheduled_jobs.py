"""Scheduled notebooks: cron's fields, and a server that answers as jupyter-scheduler.

The answers are those of jupyter-scheduler 2.12.1, shortened.
"""

from datetime import datetime
from typing import ClassVar

import pytest
from tornado.web import Application, RequestHandler

from jupyterhub_gpu_reclaim.common.clock import SystemClock
from jupyterhub_gpu_reclaim.sampling.sampler import Sampler
from jupyterhub_gpu_reclaim.sampling.scheduled_jobs import (
    Definition,
    next_due,
    next_run,
)
from tests.support.nvml import NoCards
from tests.support.served import sampled_here, served

#: A Sunday.
NOW = datetime.fromisoformat("2026-11-29T16:21:10+00:00").timestamp()
NIGHTLY = {
    "name": "nightly",
    "output_formats": ["ipynb"],
    "schedule": "0 2 * * 1-5",
    "timezone": "Europe/Berlin",
    "job_definition_id": "626aea83-0b1d-4dec-866e-01fd72014161",
    "create_time": 1795969269946,
    "active": True,
}
JOB = {
    "name": "now",
    "job_id": "85b94f06-c667-4afd-b95c-b314d52dc0ef",
    "url": "/jobs/85b94f06-c667-4afd-b95c-b314d52dc0ef",
    "create_time": 1795969270356,
    "status": "IN_PROGRESS",
}


@pytest.mark.parametrize(
    ("schedule", "zone", "due"),
    [
        ("*/20 8-17/3 * * *", "UTC", "2026-11-29T17:00+00:00"),
        ("0 2 * * mon-fri", "Europe/Berlin", "2026-11-30T02:00+01:00"),
        ("@daily", "America/New_York", "2026-11-30T00:00-05:00"),
    ],
)
def test_schedule_is_due_when_cron_says(schedule, zone, due):
    at = next_run(schedule, zone, NOW)
    assert at == datetime.fromisoformat(due).timestamp()


@pytest.mark.parametrize("strange", ["* * * *", "60 * * * *", "*/0 * * * *", "H H"])
def test_schedule_that_is_not_understood_is_not_known(strange):
    known = Definition(schedule="* * * * *")
    assert next_due([known, Definition(schedule=strange)], NOW) is None
    moved = Definition(schedule="0 0 * * *", timezone="Mars/One")
    assert next_due([moved], NOW) is None


def test_next_of_several_counts_and_paused_ones_do_not():
    daily = Definition(schedule="0 0 * * *")
    paused = Definition(schedule="* * * * *", active=False)
    assert next_due([daily, paused, Definition()], NOW) == next_run(
        "@daily", "UTC", NOW
    )
    assert next_due([paused], NOW) == 0
    assert next_due([Definition(schedule="0 0 30 2 *")], NOW) == 0


class Server(RequestHandler):
    answers: ClassVar[dict[str, object]] = {}
    asked: ClassVar[list[str]] = []

    def get(self, path):
        self.asked.append(self.request.uri.partition("?")[0])
        if (
            path == "scheduler/jobs"
            and self.get_query_argument("status") != "IN_PROGRESS"
        ):
            self.send_error(400)
        elif path not in self.answers:
            self.send_error(404)
        else:
            self.finish(self.answers[path])


async def samples_of(answers, count=1):
    status = {"connections": 0, "started": "2026-11-29T16:21:08.401707Z"}
    Server.asked.clear()
    Server.answers = {"api/status": status, **answers}
    sampler = Sampler(SystemClock(), NoCards(), answer_seconds=60.0)
    async with served(Application([("/(.*)", Server)])) as port:
        targets = [sampled_here(port)]
        taken = [(await sampler.sample_all(targets))[0] for _ in range(count)]
        sampler.client.close()
        return taken


def scheduler(definitions, jobs):
    return {
        "scheduler/job_definitions": {"job_definitions": definitions, "total_count": 9},
        "scheduler/jobs": {"jobs": jobs, "total_count": 9},
    }


async def test_job_under_way_is_a_busy_kernel_and_the_next_one_is_due():
    (taken,) = await samples_of(scheduler([NIGHTLY], [JOB]) | {"api/kernels": "[]"})
    (kernel,) = taken.kernels
    assert kernel.execution_state == "busy"
    assert kernel.name == "of the scheduled job now"
    assert taken.job_due > SystemClock().now()


async def test_job_that_an_earlier_server_has_left_under_way_is_none():
    """Its scheduler says so for ever."""
    left = JOB | {"create_time": 1795969200000}
    (taken,) = await samples_of(scheduler([], [left]) | {"api/kernels": "[]"})
    assert (taken.kernels, taken.job_due) == ([], 0)


async def test_server_without_a_scheduler_is_asked_once_since_it_logs_each_404():
    taken = await samples_of({"api/kernels": "[]"}, count=3)
    assert [one.job_due for one in taken] == [0, 0, 0]
    assert Server.asked.count("/scheduler/job_definitions") == 1


async def test_scheduler_that_answers_nonsense_is_not_known():
    (taken,) = await samples_of(
        scheduler([NIGHTLY | {"schedule": 5}], []) | {"api/kernels": "[]"}
    )
    assert taken.job_due is None
    assert "scheduler/job_definitions" in taken.problem
