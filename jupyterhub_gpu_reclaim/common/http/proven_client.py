"""HTTP client of a far part that proves itself; see ``common/auth/handshake.py``.

A program that takes over the far part's address receives no secret and is not believed:
the token is valid for one run of the far part, and is sent only once that run has
proved itself.
"""

from __future__ import annotations

from contextlib import aclosing
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.auth.handshake import NONCE, PROOF, VERSION, Hello
from jupyterhub_gpu_reclaim.common.errors import BadRequest
from jupyterhub_gpu_reclaim.common.http.client import Answer, NoResponse

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from jupyterhub_gpu_reclaim.common.auth.handshake import Vouching
    from jupyterhub_gpu_reclaim.common.http.client import Connection


class Vouched:
    """One far part that shares a secret with us.

    Args:
        http: the connection; it sends no secret by itself.
        vouching: with the secret, read each time, since its file may change.
        hello: path of the call that identifies the far part's run.
        quick: seconds for that call.
    """

    def __init__(
        self,
        http: Connection,
        vouching: Callable[[], Vouching],
        *,
        hello: str,
        quick: float,
    ) -> None:
        self._http = http
        self._vouching = vouching
        self._hello = hello
        self._quick = quick
        self._run = ""  #: as it has proved it; empty: not asked yet

    def close(self) -> None:
        """Close what is open; calls in flight fail."""
        self._http.close()

    async def ask(self, method: str, path: str, *, limit: float, **more: Any) -> Answer:
        """Send one request and return its whole answer; if ``hello`` fails, its answer.

        Args:
            method: of HTTP.
            path: with query.
            limit: seconds for all of it.
            **more: of tornado's ``HTTPRequest``.

        Raises:
            NoResponse: no answer in time, or one without a proof.
        """
        answer = await self._greeted_and_asked(method, path, limit, more)
        if answer.status == 401 and self._run:  # it has been started again
            self._run = ""
            answer = await self._greeted_and_asked(method, path, limit, more)
        return answer

    async def lines(
        self, method: str, path: str, body: bytes | None = None, *, silence: float
    ) -> AsyncGenerator[bytes | Answer, None]:
        """A request whose answer comes line by line; see ``Connection.lines``.

        Raises:
            NoResponse: the stream broke or fell silent, or a line has no proof.
        """
        for last in (False, True):
            known = bool(self._run)
            refused = await self._greet()
            if refused is not None:
                yield refused
                return
            lines = self._proved_lines(method, path, body, silence)
            async with aclosing(lines):
                async for line in lines:
                    if isinstance(line, Answer) and line.status == 401:
                        self._run = ""
                        if known and not last:
                            break
                    yield line
                else:
                    return

    async def _greeted_and_asked(
        self, method: str, path: str, limit: float, more: dict[str, Any]
    ) -> Answer:
        refused = await self._greet()
        if refused is not None:
            return refused
        return await self._proved(method, path, self._shown(), limit=limit, **more)

    async def _greet(self) -> Answer | None:
        """Ask for the run of the far part; returns the answer if that is an error."""
        if self._run:
            return None
        answer = await self._proved("GET", self._hello, {}, limit=self._quick)
        if answer.status >= 300:
            return answer
        try:
            hello = codec.decode(answer.body, Hello)
        except BadRequest as error:
            raise NoResponse(f"{self._hello}: {error}") from None
        if hello.version != VERSION:
            raise NoResponse(f"it proves itself by version {hello.version}")
        self._run = hello.run
        return None

    def _shown(self) -> dict[str, str]:
        """The token for this run."""
        return {"Authorization": f"token {self._vouching().token(self._run)}"}

    async def _proved(
        self, method: str, path: str, headers: dict[str, str], **more: Any
    ) -> Answer:
        headers = {**headers, NONCE: (nonce := token_hex())}
        answer = await self._http.ask(method, path, headers=headers, **more)
        self._check(answer, nonce, path)
        return answer

    async def _proved_lines(
        self, method: str, path: str, body: bytes | None, silence: float
    ) -> AsyncGenerator[bytes | Answer, None]:
        headers = {**self._shown(), NONCE: (nonce := token_hex())}
        number = 0
        lines = self._http.lines(method, path, body, silence=silence, headers=headers)
        async with aclosing(lines):
            async for line in lines:
                if isinstance(line, Answer):
                    self._check(line, nonce, path)
                    yield line
                elif line.strip():
                    opened = self._vouching().opened(nonce, number, line)
                    if opened is None:
                        raise NoResponse(f"{path}: a line without its proof")
                    number += 1
                    yield opened

    def _check(self, answer: Answer, nonce: str, path: str) -> None:
        """Reject an answer from any other program on that address.

        Raises:
            NoResponse: it is not the far part's.
        """
        given = answer.headers.get(PROOF, "")
        if not self._vouching().is_proved(given, nonce, answer.status, answer.body):
            what = f"status {answer.status}, and no proof that it has our token"
            raise NoResponse(f"{path}: {what}")
