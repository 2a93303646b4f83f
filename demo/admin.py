"""An administrator at the service's API: watches, suspends and resumes sessions.

Used by ``demo/check.py`` and the end-to-end tests.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from demo.user import User, UserError

if TYPE_CHECKING:
    from demo.stack import Stack


class Admin:
    """Somebody who may see and steer every session of a stack."""

    def __init__(self, stack: Stack, user: User | None = None) -> None:
        self.stack = stack
        self.user = user or User(stack.url, "admin", stack.password)
        self.user.login()
        path = f"users/{self.user.name}/tokens"
        made = self.user.hub("POST", path, json={"expires_in": 3600})
        self.headers = {"Authorization": f"token {made.json()['token']}"}

    def call(self, method: str, path: str, **kwargs: Any) -> Any:
        """Call the service's API; insists on a good answer."""
        answer = self.user.http.request(
            method,
            f"{self.stack.service_url}/api/{path}",
            headers=self.headers,
            timeout=60,
            **kwargs,
        )
        if not answer.ok:
            raise UserError(f"{method} {path}: {answer.status_code} {answer.text}")
        return answer.json() if answer.content else None

    def sessions(self) -> list[dict[str, Any]]:
        """All sessions."""
        return list(self.call("GET", "sessions"))

    def session(self, user: str, server: str = "") -> dict[str, Any]:
        """One session."""
        return dict(self.call("GET", f"sessions/{user}/{server or '-'}"))

    def suspend(self, user: str, server: str = "", *, seconds: float = 60) -> Any:
        """Suspend a session and wait until it is; one on its way back first arrives."""
        if self.session(user, server)["phase"] == "resuming":
            self.wait(user, server, phase="running", seconds=seconds)
        self.call("POST", f"sessions/{user}/{server or '-'}/suspend")
        return self.wait(user, server, phase="suspended", seconds=seconds)

    def resume(self, user: str, server: str = "") -> None:
        """Ask for a session to be brought back."""
        self.call("POST", f"sessions/{user}/{server or '-'}/resume")

    def wait(
        self, user: str, server: str = "", *, phase: str, seconds: float = 60
    ) -> dict[str, Any]:
        """Wait until a session is in that phase."""
        until, seen, way = time.monotonic() + seconds, None, [""]
        while time.monotonic() < until:
            try:
                seen = self.session(user, server)
            except (UserError, OSError) as error:
                seen = {"error": str(error)}
            if seen.get("phase") == phase:
                return seen
            now = _in_words(seen)
            way += [now] if now != way[-1] else []
            time.sleep(0.1)
        what = f"{user}/{server} not {phase} after {seconds} s"
        raise UserError("\n".join([f"{what}: {seen}", "It was:", *way[-40:]]))

    def settle(
        self, user: str, server: str = "", *, rest: float = 1.5, seconds: float = 60
    ) -> str:
        """Wait until a session stays running or suspended; returns which of them."""
        until, last, since = time.monotonic() + seconds, "", time.monotonic()
        while time.monotonic() < until:
            try:
                phase = str(self.session(user, server)["phase"])
            except (UserError, OSError) as error:
                phase = str(error)
            if phase != last:
                last, since = phase, time.monotonic()
            if last in {"running", "suspended"} and time.monotonic() - since > rest:
                return last
            time.sleep(0.2)
        raise UserError(f"{user}/{server} not at rest after {seconds} s: {last}")


def _in_words(seen: dict[str, Any]) -> str:
    """What is told of a session: its phase, its failure, why it is not reclaimed."""
    facts = seen.get("facts") or {}
    told = [facts.get("nap_failure"), facts.get("nap_verdict"), seen.get("verdict")]
    codes = [one["code"] for one in (seen.get("failure"), *told) if one]
    return " ".join([str(seen.get("phase") or seen), *codes])
