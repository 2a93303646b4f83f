"""Tells since when a kernel's cell has been waiting for an answer of its user.

A cell in ``input()`` or at a debugger's prompt computes nothing, but its server calls
the kernel "busy". The question and the answer pass through the server on the kernel's
stdin channel, page by page: this listens there, and adds the time of an open question
to the kernel's model (``GET api/kernels``). A question that no page of this server has
got is not seen, nor that of a kernel which runs elsewhere (a gateway's).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

#: Field of the kernel's model while a question is open.
FIELD = "gpu_reclaim_prompt_since"


def install(manager: Any) -> None:
    """Let a ``MappingKernelManager`` tell of open questions."""
    watch, model = manager.start_watching_activity, manager.kernel_model
    prompts: dict[str, _Prompt] = {}

    def start_watching_activity(kernel_id: str) -> None:
        watch(kernel_id)
        kernel = manager.get_kernel(kernel_id)
        known = prompts.get(kernel_id)
        if known is None or known.kernel is not kernel:
            prompts[kernel_id] = _Prompt(kernel)

    def kernel_model(kernel_id: str) -> dict[str, Any]:
        answer: dict[str, Any] = model(kernel_id)
        prompt = prompts.get(kernel_id)
        if prompt is not None and prompt.since is not None:
            answer[FIELD] = prompt.since.isoformat()
        return answer

    manager.start_watching_activity = start_watching_activity
    manager.kernel_model = kernel_model


class _Prompt:
    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.since: datetime | None = None
        if not kernel.has_trait("execution_state"):
            return
        connect = kernel.connect_stdin

        def connect_stdin(identity: bytes | None = None) -> Any:
            return self._listen(connect(identity=identity))

        kernel.connect_stdin = connect_stdin
        kernel.observe(self._close_at_end, names="execution_state")

    def _close_at_end(self, change: Any) -> None:
        # By an interrupt, too.
        if change.new != "busy":
            self.since = None

    def _listen(self, stream: Any) -> Any:
        # The reader changes: the page, or the server's buffer while that is closed.
        on_recv, send = stream.on_recv, stream.send_multipart

        def listened(
            callback: Callable[[list[bytes]], Any] | None, copy: bool = True
        ) -> None:
            def receive(message: list[bytes]) -> Any:
                self._note_question(message)
                return callback(message) if callback is not None else None

            on_recv(None if callback is None else receive, copy=copy)

        def answer(*args: Any, **kwargs: Any) -> Any:
            self.since = None
            return send(*args, **kwargs)

        stream.on_recv, stream.send_multipart = listened, answer
        return stream

    def _note_question(self, message: list[bytes]) -> None:
        session = self.kernel.session
        # Signature and header; a whole decoding would count it as seen.
        _, (_, header, *_) = session.feed_identities(message)
        if session.unpack(header).get("msg_type") == "input_request":
            self.since = datetime.now(UTC)
