"""One e-mail per notice, through the administrator's SMTP server.

``smtplib`` blocks, so each message has a thread of its own. It retries nothing.
"""

from __future__ import annotations

import asyncio
import re
import smtplib
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.service.notices.notice import NotSent
from jupyterhub_gpu_reclaim.service.notices.threads import in_thread

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.service.notices.notice import Notice

#: What a message is sent to; stricter than the standard, for names come from outside.
_ADDRESS = re.compile(r"[A-Za-z0-9_.+'-]+@[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?")


@dataclass(frozen=True, kw_only=True)
class MailServer:
    """How the server is reached."""

    host: str
    port: int
    tls: str = "starttls"  #: or ``tls`` from the start, or ``none``
    login: str = ""
    password: str = ""
    limit: float = 10.0  #: seconds for each step of a conversation


class Mail:
    """Sends.

    Args:
        server: where to.
        sender: address of the sender.
        to: template of the receivers' addresses, with ``{user}``.
    """

    name = "mail"

    def __init__(self, server: MailServer, sender: str, to: str) -> None:
        self._server = server
        self._from = sender
        self._to = to

    async def send(self, notice: Notice) -> None:
        """Send it.

        Raises:
            NotSent: there is no such address, or the server has not taken it.
        """
        address = self._to.replace("{user}", notice.session.user)
        if not _ADDRESS.fullmatch(address):
            raise NotSent(f"{address!r} is no address", retryable=False)
        message = self.message(notice, address)
        try:
            async with asyncio.timeout(6 * self._server.limit):
                await in_thread(lambda: self._deliver(message))
        except smtplib.SMTPRecipientsRefused as error:
            codes = [code for code, _ in error.recipients.values()]
            again = all(400 <= code < 500 for code in codes)
            raise NotSent(f"receiver refused: {codes}", retryable=again) from None
        except smtplib.SMTPResponseException as error:
            again = 400 <= error.smtp_code < 500
            raise NotSent(f"status {error.smtp_code}", retryable=again) from None
        except smtplib.SMTPNotSupportedError as error:
            raise NotSent(str(error), retryable=False) from None
        except (OSError, TimeoutError) as error:  # smtplib's own errors are OSErrors
            raise NotSent(f"{type(error).__name__}: {error}", retryable=True) from None

    def close(self) -> None:
        """Nothing is open between two messages."""

    def message(self, notice: Notice, address: str) -> EmailMessage:
        """The message for that address."""
        made = EmailMessage()
        made["From"] = self._from
        made["To"] = address
        made["Subject"] = _plain(notice.subject)
        made["Date"] = format_datetime(datetime.fromtimestamp(notice.at, UTC))
        # The same when it is sent again, so that mail programs show it once.
        domain = self._from.rpartition("@")[2].rstrip(">")
        made["Message-ID"] = f"<gpu-reclaim-{notice.id}-{notice.at:.0f}@{domain}>"
        made["Auto-Submitted"] = "auto-generated"
        link = f"\n{notice.link}\n" if notice.link else ""
        made.set_content(f"{notice.sentence}\n\n{notice.advice}\n{link}")
        return made

    def _deliver(self, message: EmailMessage) -> None:
        server = self._server
        with self._connect() as smtp:
            if server.tls == "starttls":
                smtp.starttls(context=ssl.create_default_context())
            if server.login:
                smtp.login(server.login, server.password)
            smtp.send_message(message)

    def _connect(self) -> smtplib.SMTP:
        server = self._server
        if server.tls != "tls":
            return smtplib.SMTP(server.host, server.port, timeout=server.limit)
        return smtplib.SMTP_SSL(
            server.host,
            server.port,
            timeout=server.limit,
            context=ssl.create_default_context(),
        )


def _plain(text: str) -> str:
    """A header's text: names of servers may hold anything."""
    return "".join(each if each.isprintable() else "?" for each in text)
