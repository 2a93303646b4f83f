"""The administrator's settings of notices, and the channels made from them.

An invalid value is an error at the service's start.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traitlets import Enum, List, TraitError, Unicode, validate
from traitlets.config import Configurable

from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.traits import Address, Seconds
from jupyterhub_gpu_reclaim.service.notices.mail import Mail, MailServer
from jupyterhub_gpu_reclaim.service.notices.messenger import Messenger
from jupyterhub_gpu_reclaim.service.notices.notice import SUBJECTS
from jupyterhub_gpu_reclaim.service.notices.webhook import Webhook

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.service.notices.notice import Channel

_SERVER = re.compile(r"([A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\]):(\d{1,5})")
_SENDER = re.compile(r"[^\r\n]*[A-Za-z0-9_.+'-]+@[A-Za-z0-9.-]+>?")
#: Fewer characters than that are no secret.
_SHORTEST_SECRET = 16


class Notices(Configurable):
    """Which notices go where beyond the open tab; none unless configured."""

    kinds = List(
        Enum(list(SUBJECTS)),
        list(SUBJECTS),
        help="""What is told: any of ``warned``, ``suspended``, ``suspend-failed``,
        ``resume-failed`` and ``deletion-ahead`` (see
        ``ReclaimService.tell_deletion_hours``). Fewer spare people's attention. Empty:
        nothing. Example: ["warned", "deletion-ahead"].
        """,
    ).tag(config=True)

    link = Address(
        like="https://host/path",
        help="""Address of the service's page as users see it, for the notices.

        Empty: notices have no link. Example:
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

        Slack, Teams, Matrix, Telegram and a hundred more:
        https://github.com/caronc/apprise/wiki. ``{user}`` in an address stands for the
        session's user; lines that begin with ``#`` are comments. The file holds
        tokens, so let only root read it; it is read once, at the start. Needs
        ``pip install jupyterhub-gpu-reclaim[notices]`` beside the Hub. Empty: none.
        Example: "/etc/jupyterhub/gpu-reclaim-messengers".
        """,
    ).tag(config=True)

    mail_server = Unicode(
        "",
        help="""SMTP server, as ``host:port``, that takes an e-mail for each notice.

        Empty: no e-mails. Example: "smtp.example.org:587".
        """,
    ).tag(config=True)

    mail_tls = Enum(
        ["starttls", "tls", "none"],
        default_value="starttls",
        help="""How the way to the mail server is protected.

        ``starttls``: a plain connection becomes an encrypted one (port 587); ``tls``:
        encrypted from the start (port 465); ``none``: not at all, for a server on this
        machine. The server's certificate has to be good. Example: "tls".
        """,
    ).tag(config=True)

    mail_from = Unicode(
        "",
        help="""Sender of the e-mails. Example: "JupyterHub <hub@example.org>".

        Empty: not possible where ``mail_server`` is set.
        """,
    ).tag(config=True)

    mail_to = Unicode(
        "",
        help="""Receiver of an e-mail, with ``{user}`` for the session's user.

        A user whose name makes no address gets none. Empty: not possible where
        ``mail_server`` is set. Example: "{user}@example.org", or "{user}" where users'
        names are their addresses.
        """,
    ).tag(config=True)

    mail_login = Unicode(
        "",
        help="""Login at the mail server. Empty: none is needed. Example: "hub".""",
    ).tag(config=True)

    mail_password_file = Unicode(
        "",
        help="""File with the password for ``mail_login``, read once, at the start.

        Empty: not possible where ``mail_login`` is set. Example:
        "/etc/jupyterhub/smtp.password".
        """,
    ).tag(config=True)

    time_limit = Seconds(
        10.0,
        min=1.0,
        help="""Seconds for one request to the webhook or one step with the mail server.

        Longer waits for slow ones; shorter lets the next notice come sooner. It cannot
        be 0. Example: 30.
        """,
    ).tag(config=True)

    @validate("mail_server")
    def _check_server(self, proposal: Any) -> str:
        server: str = proposal["value"]
        found = _SERVER.fullmatch(server)
        if server and not (found and 0 < int(found[2]) < 65536):
            example = "'smtp.example.org:587'"
            raise TraitError(
                f"Notices.mail_server must be like {example}, not {server}"
            )
        return server

    @validate("mail_to")
    def _check_to(self, proposal: Any) -> str:
        to: str = proposal["value"]
        if to and "{user}" not in to:
            raise TraitError("Notices.mail_to must contain {user}")
        return to

    @validate("mail_from")
    def _check_from(self, proposal: Any) -> str:
        sender: str = proposal["value"]
        if sender and not _SENDER.fullmatch(sender):
            raise TraitError(f"Notices.mail_from is no address: {sender!r}")
        return sender

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
            found.append(
                Webhook(self.webhook_url, secret.encode(), self.time_limit, clock)
            )
        if self.messenger_file:
            found.append(self._messenger())
        if self.mail_server:
            found.append(self._mail())
        return found

    def _messenger(self) -> Messenger:
        text = _secret("messenger_file", self.messenger_file)
        lines = [line.strip() for line in text.splitlines()]
        addresses = [line for line in lines if line and not line.startswith("#")]
        if not addresses:
            raise _wrong(f"messenger_file {self.messenger_file} has no address")
        try:
            return Messenger(addresses, self.time_limit)
        except ImportError:
            install = "pip install jupyterhub-gpu-reclaim[notices]"
            raise _wrong(f"messenger_file needs Apprise: {install}") from None
        except ValueError as error:
            raise _wrong(f"messenger_file {self.messenger_file}: {error}") from None

    def _mail(self) -> Mail:
        for name in ("mail_from", "mail_to"):
            if not getattr(self, name):
                raise _wrong(f"{name} is needed where mail_server is set")
        if self.mail_login and not self.mail_password_file:
            raise _wrong("mail_password_file is needed where mail_login is set")
        host, _, port = self.mail_server.rpartition(":")
        server = MailServer(
            host=host.strip("[]"),
            port=int(port),
            tls=self.mail_tls,
            login=self.mail_login,
            password=_secret("mail_password_file", self.mail_password_file),
            limit=self.time_limit,
        )
        return Mail(server, self.mail_from, self.mail_to)


def _secret(name: str, path: str) -> str:
    """What a file holds; empty where none is named.

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
