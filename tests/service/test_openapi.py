"""The OpenAPI document: complete, and true when strangers' tools try it."""

import asyncio
import contextlib
import json
import shutil
import sys
from pathlib import Path

import pytest
from tornado import httputil
from tornado.web import RequestHandler

from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.service.api import ROUTES, openapi
from jupyterhub_gpu_reclaim.service.api.base import Route
from jupyterhub_gpu_reclaim.service.api.openapi import METHODS, document, operations
from tests.service.conftest import PREFIX
from tests.support.long_stories import but

SCHEMATHESIS = shutil.which("st", path=str(Path(sys.executable).parent))


def test_every_method_of_every_route_is_in_the_document():
    paths = openapi("/services/gpu-reclaim/")["paths"]
    for route in ROUTES:
        none = RequestHandler._unimplemented_method
        written = {m for m in METHODS if getattr(route, m) is not none}
        assert written, route
        assert written == set(operations(route)), route
        assert written == set(paths[f"/{route.path}"]), route


def test_every_class_with_a_path_is_among_the_routes():
    def below(kind):
        for one in kind.__subclasses__():
            yield one
            yield from below(one)

    assert {one for one in below(Route) if one.path} == set(ROUTES)


def test_operation_ids_are_unique():
    paths = openapi("/")["paths"]
    ids = [one["operationId"] for path in paths.values() for one in path.values()]
    assert len(ids) == len(set(ids))


def test_document_of_no_routes_is_still_a_document():
    made = document((), prefix="/", version="1")
    assert made["paths"] == {}
    assert "Failure" in made["components"]["schemas"]


async def test_document_is_served_to_anyone(service):
    response = await service.call("api/openapi.json", "")
    assert response.code == 200
    assert json.loads(response.body)["openapi"] == "3.1.0"


def take_any_number_of_values() -> None:
    """Else Tornado itself refuses a query of more than a thousand, without JSON."""
    if not hasattr(httputil, "set_parse_body_config"):
        return  # Tornado before 6.5.5 has no bound
    urlencoded = httputil.ParseUrlEncodedConfig(max_arguments=10**6)
    httputil.set_parse_body_config(httputil.ParseBodyConfig(urlencoded=urlencoded))


@contextlib.asynccontextmanager
async def relayed(service):
    """The service's address for a program that speaks TCP alone, by its socket."""

    async def carry(reader, writer):
        far_reader, far_writer = await asyncio.open_unix_connection(
            service.socket.removeprefix("unix:")
        )

        async def pass_on(source, target):
            with contextlib.suppress(OSError):
                while data := await source.read(65536):
                    target.write(data)
            target.close()

        await asyncio.gather(pass_on(reader, far_writer), pass_on(far_reader, writer))

    async with await asyncio.start_server(carry, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}{PREFIX}"


@pytest.mark.parametrize("seconds", but([4, 20], 4))
@pytest.mark.parametrize(
    ("token", "only"), [("token-root", "person"), ("spawner", "spawner")]
)
async def test_service_keeps_to_its_document_when_schemathesis_tries_it(
    service, tmp_path, token, only, seconds
):
    service.context.streams.per_person = 1000
    take_any_number_of_values()
    for name in ("ada", "bob"):
        service.control.put(name, phase=Phase.RUNNING)
        service.control.put(name, "saved", phase=Phase.SUSPENDED)
    at = relayed(service) if token == "spawner" else contextlib.nullcontext(service.url)
    async with at as url:
        process = await asyncio.create_subprocess_exec(
            SCHEMATHESIS,
            "run",
            url + "api/openapi.json",
            "--header=Authorization: token " + token,
            f"--include-tag={only}",
            "--exclude-path=/api/events",  # never ends by itself
            "--checks=all",
            "--exclude-checks=ignored_auth",  # it would send the token to every call
            "--phases=examples,coverage,fuzzing",
            "--max-examples=8",
            f"--max-time={seconds}",
            "--seed=1",
            "--request-timeout=10",
            "--continue-on-failure",
            "--no-color",
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        async with asyncio.timeout(180):
            output, _ = await process.communicate()
        assert process.returncode == 0, output.decode()
