"""The administrator's settings of notices, and the channels made from them.

An invalid value is an error at the service's start.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from traitlets import Enum, List, Unicode
from traitlets.config import Configurable

from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.traits import Address
from jupyterhub_gpu_reclaim.service.notices.messenger import Messenger
from jupyterhub_gpu_reclaim.service.notices.notice import SUBJECTS
from jupyterhub_gpu_reclaim.service.notices.webhook import Webhook

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.service.notices.notice import Channel

#: Fewer characters than that are no secret.
_SHORTEST_SECRET = 16
#: Seconds for one request.
_LIMIT = 10.0


class Notices(Configurable):
    """Notices beyond the open tab, and where they go; none unless configured."""

    kinds = List(
        Enum(list(SUBJECTS)),
        list(SUBJECTS),
        help="""What is told: any of ``warned``, ``suspended``, ``suspend-failed``,
        ``resume-failed``, ``ended`` and ``deletion-ahead`` (a day before a checkpoint
        is deleted for its age). Fewer spare people's attention. Empty: nothing.
        Example: ["warned", "deletion-ahead"].
        """,
    ).tag(config=True)

    link = Address(
        like="https://host/path",
        help="""Address of the service's page as users see it, for the notices.

        Empty: notices have no link. Set it where notices are sent. Example:
        "https://hub.example.org/services/gpu-reclaim/".
        """,
    ).tag(config=True)

    webhook_url = Address(
        like="https://host/path",
        help="""Address that gets each notice as JSON in a POST request.

        It is sent with a time limit, three more times where that may help, and given
        up then; no session ever waits for it, and redirections are not followed. With
        ``https`` nobody on the way reads it. An address that is itself a secret
        belongs into ``ReclaimService.config_file``, which only root can read. Empty:
        none. Example: "https://chat.example.org/hooks/gpu".
        """,
    ).tag(config=True)

    webhook_secret_file = Unicode(
        "",
        help="""File with the secret that signs what the webhook gets.

        The header ``X-GPU-Reclaim-Signature`` is ``sha256=`` and the HMAC-SHA256 of
        ``X-GPU-Reclaim-Timestamp``, a dot and the body, so that a receiver knows who
        sent it and when. Read once, at the start. Empty: nothing is signed. Example:
        "/etc/jupyterhub/gpu-reclaim-webhook.secret".
        """,
    ).tag(config=True)

    messenger_file = Unicode(
        "",
        help="""File with addresses of Apprise, one a line, that get each notice.

        E-mail, Slack, Teams, Matrix and a hundred more:
        https://github.com/caronc/apprise/wiki. ``{user}`` in an address stands for the
        session's user; one whose name would be no single receiver there is not told.
        Lines that begin with ``#`` are comments. The file holds
        tokens, so let only root read it; it is read once, at the start. Needs
        ``pip install jupyterhub-gpu-reclaim[notices]`` beside the Hub. Empty: none.
        Example: "/etc/jupyterhub/gpu-reclaim-messengers".
        """,
    ).tag(config=True)

    def channels(self, clock: Clock) -> list[Channel]:
        """All configured channels.

        Raises:
            Refused: something is missing, or a secret cannot be read.
        """
        found: list[Channel] = []
        if self.webhook_url:
            secret = _secret("webhook_secret_file", self.webhook_secret_file)
            if self.webhook_secret_file and len(secret) < _SHORTEST_SECRET:
                raise _wrong("webhook_secret_file holds a secret that is too short")
            found.append(Webhook(self.webhook_url, secret.encode(), _LIMIT, clock))
        if self.messenger_file:
            found.append(self._messenger())
        return found

    def _messenger(self) -> Messenger:
        text = _secret("messenger_file", self.messenger_file)
        lines = [line.strip() for line in text.splitlines()]
        addresses = [line for line in lines if line and not line.startswith("#")]
        if not addresses:
            raise _wrong(f"messenger_file {self.messenger_file} has no address")
        try:
            return Messenger(addresses, _LIMIT)
        except ImportError:
            install = "pip install jupyterhub-gpu-reclaim[notices]"
            raise _wrong(f"messenger_file needs Apprise: {install}") from None
        except ValueError as error:
            raise _wrong(f"messenger_file {self.messenger_file}: {error}") from None


def _secret(name: str, path: str) -> str:
    """Read the secret from a file; empty where none is named.

    Raises:
        Refused: it cannot be read, or holds nothing.
    """
    if not path:
        return ""
    try:
        text = Path(path).read_text().strip()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise _wrong(f"{name} {path} cannot be read: {why}") from error
    if not text:
        raise _wrong(f"{name} {path} is empty")
    return text


def _wrong(what: str) -> Refused:
    return Refused(Reason.SETTING_INVALID, what=f"Notices.{what}.")
