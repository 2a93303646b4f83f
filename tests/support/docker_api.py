"""The part of Docker's API that a spawner uses, over TCP, without any container."""

import http.server
import json
import re
import threading
from urllib.parse import parse_qs, urlsplit

from tests.support.unix_server import Answers

_PATH = re.compile(r"(?:/v[\d.]+)?(/[^?]*)")


class DockerApi(http.server.ThreadingHTTPServer):
    """Its containers are a list of dictionaries; ``failing`` is answered with 500."""

    daemon_threads = True

    def __init__(self):
        self.containers: list[dict] = []
        self.failing = False
        super().__init__(("127.0.0.1", 0), _Answer)

    @property
    def url(self):
        return f"tcp://127.0.0.1:{self.server_address[1]}"

    def add(self, name, labels=None, *, running=True, created=0, env=()):
        identity = f"{len(self.containers) + 1:064x}"
        made = {"Id": identity, "Name": f"/{name}", "Created": created}
        made["Config"] = {"Labels": labels or {}, "Env": list(env)}
        made["State"] = {"Running": running, "ExitCode": 0, "Error": ""}
        made["State"]["FinishedAt"] = ""
        made["NetworkSettings"] = {"Networks": {}}
        self.containers.append(made)
        return identity

    def names(self):
        return [one["Name"][1:] for one in self.containers]

    def find(self, name):
        return next(
            (c for c in self.containers if name in {c["Id"], c["Name"][1:]}), None
        )


def serving():
    with DockerApi() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


class _Answer(Answers, http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        path = self._path()
        if path == "/version":
            self._answer(200, {"ApiVersion": "1.41"})
        elif self.server.failing:
            self._answer(500, {"message": "the daemon has a bad day"})
        elif path == "/containers/json":
            self._list()
        elif path.startswith("/images/"):
            self._answer(200, {"Id": "sha256:1", "Config": {"Cmd": ["lab"]}})
        else:
            found = self.server.find(path.split("/")[2])
            if found is None:
                self._answer(404, {"message": "No such container"})
            else:
                self._answer(200, found)

    def do_POST(self):
        body = self.body()
        query = parse_qs(urlsplit(self.path).query)
        if self._path() == "/containers/create":
            [name] = query["name"]
            if self.server.find(name):
                self._answer(409, {"message": f'Conflict. The name "/{name}" is used'})
                return
            labels = json.loads(body)["Labels"]
            made = self.server.add(name, labels, running=False)
            self._answer(201, {"Id": made})
            return
        found = self.server.find(self._path().split("/")[2])
        if found is None:
            self._answer(404, {"message": "No such container"})
            return
        found["State"]["Running"] = self._path().endswith("/start")
        self._answer(204)

    def do_DELETE(self):
        found = self.server.find(self._path().split("/")[2])
        query = parse_qs(urlsplit(self.path).query)
        if found is None:
            self._answer(404, {"message": "No such container"})
        elif found["State"]["Running"] and query.get("force") != ["True"]:
            self._answer(409, {"message": "You cannot remove a running container"})
        else:
            self.server.containers.remove(found)
            self._answer(204)

    def _list(self):
        query = parse_qs(urlsplit(self.path).query)
        wanted = json.loads(query.get("filters", ["{}"])[0]).get("label", [])
        pairs = [word.partition("=")[::2] for word in wanted]
        told = [
            {
                "Id": one["Id"],
                "Names": [one["Name"]],
                "Created": one["Created"],
                "Labels": one["Config"]["Labels"],
            }
            for one in self.server.containers
            if one["State"]["Running"]
            and all(one["Config"]["Labels"].get(k) == v for k, v in pairs)
        ]
        # as Docker does: the newest first
        self._answer(200, sorted(told, key=lambda one: -one["Created"]))

    def _path(self):
        return _PATH.match(self.path)[1]

    def _answer(self, status, body=None):
        self.answer(status, b"" if body is None else json.dumps(body).encode())
