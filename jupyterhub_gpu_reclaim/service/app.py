"""The service's program, which the Hub runs.

It wires settings, journal, clients, policy, controller and routes. The Hub gives it its
address and its tokens in the environment, and starts it again when it has ended for any
reason (``hub/patches.py``). It listens at once, and ``web/front.py`` says what keeps it
from working, which it tries again from the start a little later.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

from jupyterhub.services.auth import HubOAuth
from sqlalchemy.exc import ArgumentError
from traitlets import TraitError, default
from traitlets.config import Application

from jupyterhub_gpu_reclaim import __version__
from jupyterhub_gpu_reclaim.common import logs
from jupyterhub_gpu_reclaim.common.auth.scopes import OPTIONS
from jupyterhub_gpu_reclaim.common.clock import SystemClock
from jupyterhub_gpu_reclaim.common.errors import ReclaimError, Refused, StoreError
from jupyterhub_gpu_reclaim.common.http import unix_sockets
from jupyterhub_gpu_reclaim.common.http.server import Door, raise_file_limit
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.controller import Controller
from jupyterhub_gpu_reclaim.controlplane.journal import Journal
from jupyterhub_gpu_reclaim.policy.decide import Decider
from jupyterhub_gpu_reclaim.policy.guards import Guards
from jupyterhub_gpu_reclaim.policy.idle import IdlePolicy
from jupyterhub_gpu_reclaim.policy.nap import NapPolicy
from jupyterhub_gpu_reclaim.policy.pressure import PressurePolicy, choose_to_go
from jupyterhub_gpu_reclaim.policy.rules import Rules, Subject
from jupyterhub_gpu_reclaim.sampling.window import Window
from jupyterhub_gpu_reclaim.service import event_log, metrics, notices
from jupyterhub_gpu_reclaim.service.api.context import Context
from jupyterhub_gpu_reclaim.service.clients.hub import HubClient
from jupyterhub_gpu_reclaim.service.node_watch import NodeWatch, watching
from jupyterhub_gpu_reclaim.service.probe import asking
from jupyterhub_gpu_reclaim.service.process import held_socket, lifeline
from jupyterhub_gpu_reclaim.service.settings import placement, validation
from jupyterhub_gpu_reclaim.service.settings.environment import HubEnvironment
from jupyterhub_gpu_reclaim.service.settings.options import Options
from jupyterhub_gpu_reclaim.service.web import pages
from jupyterhub_gpu_reclaim.service.web.front import Front
from jupyterhub_gpu_reclaim.service.web.site import MAX_BODY, application

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Callable, Mapping

    from jupyterhub_gpu_reclaim.common.models import SessionKey, SessionPolicy
    from jupyterhub_gpu_reclaim.controlplane.interfaces import Agent

log = logging.getLogger(__name__)

#: Seconds between two attempts at a journal that another service holds.
TRY_SECONDS = 0.5
#: Seconds between two looks whether the journal is still ours.
LOOK_SECONDS = 5.0
#: Seconds for an orderly end; then it just ends, which loses nothing (law 6).
FAREWELL = 5.0
#: Seconds for which a service that cannot work says why, before it starts over.
AGAIN_SECONDS = 10.0


class ReclaimService(Application, Options):
    """Suspends idle sessions and resumes them: the Hub's service."""

    name = "jupyterhub-gpu-reclaim-service"
    description = "Suspends idle sessions of a JupyterHub and brings them back."
    version = __version__
    classes = [*validation.PARTS, HubOAuth]  # noqa: RUF012

    @default("log_level")
    def _default_log_level(self) -> int:
        return logging.INFO

    def initialize(self, argv: list[str] | None = None) -> None:
        """Read the settings of ``configure(c)``, which has judged them, and words."""
        words = json.loads(os.environ.get(OPTIONS, "[]"))
        super().initialize([*words, *(sys.argv[1:] if argv is None else argv)])

    def exit(self, exit_status: int | str | None = 0) -> NoReturn:
        """Raise what traitlets would end the program for: it is to be said."""
        error = sys.exc_info()[1]
        if error is None:
            super().exit(exit_status)
        what = f"A setting makes no sense: {error}"
        raise Refused(Reason.SETTING_INVALID, what=what) from None

    async def work(
        self, environment: HubEnvironment, front: Front, ending: asyncio.Event
    ) -> None:
        """Wait for the journal, and work on it until told to end.

        Raises:
            ReclaimError: something is missing; or the journal was lost.
        """
        logs.set_up(cast("int | str", self.log_level))
        secret = lifeline.secret_in(Path(self.state_dir))
        journal = self._journal()
        try:
            taken = _taken(journal, lambda: front.close(Reason.JOURNAL_HELD))
            if not await _done_before(ending, taken):
                return
            hub = HubClient(
                environment.api_url,
                environment.api_token,
                ca_file=environment.hub_ca,
                own=environment.own,
            )
            parts = self._controller(hub, journal)
            async with parts as (controller, nodes):
                await controller.start()
                context = self._context(environment, controller, hub, nodes)
                front.open(application(context, cookie_secret=secret))
                log.info("service: ready at %s", environment.prefix)
                if await _done_before(ending, _lost(journal)):
                    what = "The journal was lost: its database let go of our lock."
                    raise StoreError(Reason.INTERNAL, detail=what)
        finally:
            front.close(Reason.SERVICE_STARTING)
            journal.close()

    @contextlib.asynccontextmanager
    async def _controller(
        self, hub: HubClient, journal: Journal
    ) -> AsyncIterator[tuple[Controller, NodeWatch]]:
        folder = Path(self.state_dir)
        agent = await placement.agent_of(self, journal)
        idle = IdlePolicy(parent=self)
        idle.max_sample_age = max(idle.max_sample_age, 2 * self.sample_interval)
        pressure = PressurePolicy(idle, parent=self)
        under_pressure = pressure.pressure_idle_after
        guards = Guards(parent=self)
        probe = asking(self.probe)
        decide = Decider(guards.denials, [idle, pressure], probed=probe is not None)
        rules = Rules(parent=self)
        naps = NapPolicy(idle, guards, seats=self.seats_per_gpu, parent=self)
        nap_after = max(naps.usually_after, rules.longest("nap_after"))
        span = max(idle.idle_after, rules.longest("idle_after"))
        span = max(span or under_pressure, nap_after, naps.room_after)
        usual = idle.idle_after or under_pressure or span
        controller = Controller(
            journal=journal,
            agent=agent,
            hub=hub,
            decide=decide,
            choose=partial(choose_to_go, decide) if under_pressure else None,
            naps=naps if nap_after else None,
            policies=policies_by(rules, hub, agent) if rules.rules else None,
            window=lambda: Window(
                span=span, interval=self.sample_interval, usual=usual
            ),
            clock=SystemClock(),
            settings=replace(self.settings(), wake_for_jobs=idle.wake_for_jobs),
            folder=folder,
            probe=probe,
        )
        senders = self._senders()
        nodes = NodeWatch(
            agent, SystemClock(), controller.note_silent, controller.nodes
        )
        try:
            async with (
                event_log.keeping(journal, self.event_log),
                notices.telling(journal, senders, controller.counters),
                watching(nodes),
            ):
                try:
                    yield controller, nodes
                finally:
                    await _finish_within(FAREWELL, controller.stop())
        finally:
            await _finish_within(FAREWELL, agent.stop())
            hub.close()

    def _journal(self) -> Journal:
        """Open the journal.

        Raises:
            Refused: its address is invalid. It is not repeated: it may hold a password.
            StoreError: it cannot be opened, and ``detail`` says why.
        """
        address = self.journal_url or f"sqlite:///{self.state_dir}/journal.sqlite"
        try:
            return Journal(address)
        except (ArgumentError, ImportError) as error:
            what = f"journal_url is no address that can be opened: {error}."
            raise Refused(Reason.SETTING_INVALID, what=what) from error

    def _senders(self) -> dict[str, notices.Send]:
        """What sends notices, by channel.

        Raises:
            Refused: a file cannot be read, or Apprise is missing.
        """
        found = {}
        if self.webhook_url:
            secret = _contents("webhook_secret_file", self.webhook_secret_file)
            found["webhook"] = notices.webhook(self.webhook_url, secret.encode())
        if self.messenger_file:
            lines = _contents("messenger_file", self.messenger_file).splitlines()
            addresses = [each for each in lines if each and not each.startswith("#")]
            try:
                found["messenger"] = notices.messenger(addresses)
            except ImportError:
                install = "pip install jupyterhub-gpu-reclaim[notices]"
                what = f"messenger_file needs Apprise: {install}."
                raise Refused(Reason.SETTING_INVALID, what=what) from None
        return found

    def _context(
        self,
        environment: HubEnvironment,
        controller: Controller,
        hub: HubClient,
        nodes: NodeWatch,
    ) -> Context:
        HubOAuth.instance(parent=self)
        return Context(
            control=controller,
            clock=SystemClock(),
            registry=metrics.registry(controller.totals, nodes.now),
            templates=pages.templates(),
            spawner_token=environment.spawner_token.encode(),
            prefix=environment.prefix,
            hub_prefix=environment.hub_prefix,
            created=hub.created,
            nodes=nodes.now,
            warnings=lambda: [
                *environment.warnings,
                *controller.lately_culled(),
                *culled_early(
                    controller.culls_after(), IdlePolicy(parent=self).idle_after
                ),
            ],
            announcement=environment.announcement,
            hub_host=environment.hub_host,
            metrics_open=self.metrics_open,
            trust_plain_http=self.trust_plain_http,
        )


def policies_by(
    rules: Rules, hub: HubClient, agent: Agent
) -> Callable[[SessionKey], SessionPolicy]:
    """The policy of a session by the rules; no request is made for it.

    Groups and options come with the Hub's other answers, labels with the pods that are
    watched.
    """

    def policy(key: SessionKey) -> SessionPolicy:
        subject = Subject(
            key=key,
            groups=hub.groups(key.user),
            options=hub.options(key),
            labels=agent.labels(key),
        )
        return rules.policy_for(subject)

    return policy


def culled_early(
    culls_after: Mapping[SessionKey, float], idle_after: float
) -> list[str]:
    """Name servers that end idle kernels, or themselves, before they are saved."""
    early = sorted(key for key, after in culls_after.items() if after <= idle_after)
    if not early:
        return []
    more = f" and {len(early) - 1} more" if early[1:] else ""
    told = (
        f"The server of {early[0]}{more} ends idle kernels, or itself, after"
        f" {culls_after[early[0]]:g} s, by its own settings, before it is suspended"
        f" (after {idle_after:g} s), and nothing is saved: docs/how-to/cullers.md."
    )
    return [told]


async def _taken(journal: Journal, waits: Callable[[], None]) -> None:
    """Wait until the journal is ours; ``waits`` is called if another service has it."""
    told = False
    while not journal.take():
        if not told:
            log.warning("service: another one holds the journal; waiting for its end")
            waits()
            told = True
        await SystemClock().sleep(TRY_SECONDS)
    log.info("service: holds the journal (term %d)", journal.term)


async def _lost(journal: Journal) -> None:
    while journal.is_held():
        await SystemClock().sleep(LOOK_SECONDS)


async def _done_before(ending: asyncio.Event, work: Any) -> bool:
    """Wait for some work or the order to end; returns whether the work was done."""
    order, task = asyncio.ensure_future(ending.wait()), asyncio.ensure_future(work)
    try:
        await asyncio.wait({order, task}, return_when=asyncio.FIRST_COMPLETED)
        if ending.is_set():
            return False
        task.result()
        return True
    finally:
        order.cancel()
        task.cancel()


def _contents(name: str, path: str) -> str:
    """Read the file that a setting names; empty where it names none.

    Raises:
        Refused: it cannot be read, or holds nothing.
    """
    try:
        text = Path(path).read_text().strip() if path else ""
        why = "it is empty" if path and not text else ""
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
    if why:
        what = f"{name} {path} cannot be used: {why}."
        raise Refused(Reason.SETTING_INVALID, what=what)
    return text


async def _finish_within(seconds: float, work: Any) -> None:
    try:
        await asyncio.wait_for(work, seconds)
    except TimeoutError:
        log.warning("service: the end took longer than %.0f s; leaving", seconds)


async def run(environment: HubEnvironment) -> int:
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    if lifeline.die_with_parent(int(os.environ.get(lifeline.HUB_PID, "0"))):
        return 0
    guard = asyncio.ensure_future(lifeline.end_if_hung())
    front = Front(environment)
    server = Door(front, max_body=MAX_BODY, files=raise_file_limit(), xheaders=True)
    try:
        listening = await _listening(environment, ending)
        if listening is None:
            return 0
        server.add_socket(listening)
        why = _open_to_spawner(server, environment.spawner_socket)
        why = why or await _hindrance(environment, front, ending)
        if not why:
            return 0
        front.close(Reason.SERVICE_BROKEN, why=why)
        # What the Hub has read is the same until it is started again itself.
        again = ending.wait() if environment.problems else asyncio.sleep(AGAIN_SECONDS)
        await _done_before(ending, again)
        return 1
    finally:
        log.info("service: ending")
        server.stop()
        await _finish_within(FAREWELL, server.close_all_connections())
        guard.cancel()


async def _listening(
    environment: HubEnvironment, ending: asyncio.Event
) -> socket.socket | None:
    host, port = environment.host, environment.port
    told = False
    while not ending.is_set():
        try:
            held = held_socket.taken(os.environ, port)
            return held or held_socket.listening(host, port)
        except OSError as error:
            if not told:  # a predecessor needs a moment to end
                what = "service: the address %s:%d cannot be used: %s; trying on"
                log.warning(what, host, port, error.strerror or error)
                told = True
            await _done_before(ending, asyncio.sleep(held_socket.AGAIN))
    return None


def _open_to_spawner(server: Door, path: Path) -> str:
    """Listen at the spawner's socket; what prevented it, in a sentence."""
    try:
        server.add_socket(unix_sockets.listening(path))
    except OSError as error:
        log.critical("service: the socket %s cannot be made: %s", path, error)
        return f"The socket {path} cannot be made: {error.strerror}."
    return ""


async def _hindrance(
    environment: HubEnvironment, front: Front, ending: asyncio.Event
) -> str:
    """Work; what prevented it, in a sentence; empty: it was told to end."""
    if environment.problems:
        return " ".join(environment.problems)  # the Hub's log has them
    service = ReclaimService()
    try:
        service.initialize()
        await service.work(environment, front, ending)
    except ReclaimError as error:
        detail = error.detail.partition("\n")[0]
        log.critical("service: it cannot work: %s %s", error.message, detail)
        return error.message
    except TraitError as error:
        log.critical("service: it cannot work: %s", error)
        return f"A setting makes no sense: {error}"
    except Exception:
        log.exception("service: it cannot work")
        return "Its program failed; the Hub's log says why."
    return ""


def main() -> None:
    """Run the service; outside a Hub, say so and exit with 1."""
    logs.set_up(logging.INFO)
    try:
        environment = HubEnvironment.read(os.environ)
    except Refused as error:
        sys.stderr.write(f"{error.message}\n")
        sys.exit(1)
    sys.exit(asyncio.run(run(environment)))
