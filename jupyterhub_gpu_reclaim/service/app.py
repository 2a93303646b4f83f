"""``jupyterhub-gpu-reclaim-service``: the program that the Hub runs as its service.

It wires settings, journal, clients, policy, controller and routes. The Hub gives it its
address and its tokens in the environment. Normally ``process/supervisor.py`` runs it,
passes it the listening socket, and starts it again when it has ended for any reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import logging
import os
import signal
import sys
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
from jupyterhub_gpu_reclaim.common.http.server import (
    door,
    raise_file_limit,
)
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.controlplane.api.controller import Controller
from jupyterhub_gpu_reclaim.controlplane.decide.judge import SessionPolicies
from jupyterhub_gpu_reclaim.controlplane.journal.journal import Journal
from jupyterhub_gpu_reclaim.policy.decide import Decider
from jupyterhub_gpu_reclaim.policy.guards import Guards
from jupyterhub_gpu_reclaim.policy.idle import IdlePolicy
from jupyterhub_gpu_reclaim.policy.nap import NapDecider, NapPolicy
from jupyterhub_gpu_reclaim.policy.pressure import PreemptionPolicy, PressurePolicy
from jupyterhub_gpu_reclaim.policy.rules import Rules
from jupyterhub_gpu_reclaim.sampling.window import Window
from jupyterhub_gpu_reclaim.service import metrics, notices
from jupyterhub_gpu_reclaim.service.api.context import Context
from jupyterhub_gpu_reclaim.service.clients.hub import HubClient
from jupyterhub_gpu_reclaim.service.drain_watch import DrainWatch
from jupyterhub_gpu_reclaim.service.events.feed import feeding
from jupyterhub_gpu_reclaim.service.lost_nodes import LostNodes
from jupyterhub_gpu_reclaim.service.node_watch import NodeWatch, watching
from jupyterhub_gpu_reclaim.service.process import lifeline, standby
from jupyterhub_gpu_reclaim.service.process.reporting import Reporter
from jupyterhub_gpu_reclaim.service.settings import placement, validation
from jupyterhub_gpu_reclaim.service.settings.environment import HubEnvironment
from jupyterhub_gpu_reclaim.service.settings.options import Options
from jupyterhub_gpu_reclaim.service.web import pages
from jupyterhub_gpu_reclaim.service.web.site import MAX_BODY, application

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tornado import web

    from jupyterhub_gpu_reclaim.common.http.server import Door
    from jupyterhub_gpu_reclaim.service.events.log import EventLog

log = logging.getLogger(__name__)

#: Seconds between two attempts at a journal that another service holds.
TRY_SECONDS = 0.5
#: Seconds between two looks whether the journal is still ours.
LOOK_SECONDS = 5.0
#: Seconds for an orderly end; then it just ends, which loses nothing (law 6).
FAREWELL = 5.0


class ReclaimService(Application, Options):
    """Suspends idle sessions and resumes them: the Hub's service."""

    name = "jupyterhub-gpu-reclaim-service"
    description = "Suspends idle sessions of a JupyterHub and brings them back."
    version = __version__
    raise_config_file_errors = True
    classes = [*validation.PARTS, HubOAuth]  # noqa: RUF012
    aliases = {  # noqa: RUF012
        "config": "ReclaimService.config_file",
        "agent": "ReclaimService.agent",
        "agent-token-file": "ReclaimService.agent_token_file",
        "state-dir": "ReclaimService.state_dir",
        "sample-interval": "ReclaimService.sample_interval",
        "idle-after": "IdlePolicy.idle_after",
        "log-level": "ReclaimService.log_level",
    }

    @default("log_level")
    def _default_log_level(self) -> int:
        return logging.INFO

    reporter = Reporter()  #: reports to the supervisor
    _ready = False

    def initialize(self, argv: list[str] | None = None) -> None:
        """Read the settings of ``configure(c)`` and the command line, then the file.

        The file sets what neither of the others does.

        Raises:
            Refused: the named file is missing or is no Python, or a setting is unknown
                or has an invalid value.
        """
        words = json.loads(os.environ.get(OPTIONS, "[]"))
        super().initialize([*words, *(sys.argv[1:] if argv is None else argv)])
        if self.config_file:
            path = Path(self.config_file)
            if not path.is_file():
                what = f"There is no configuration file {path}."
                raise Refused(Reason.SETTING_INVALID, what=what)
            given = copy.deepcopy(self.config)
            try:
                self.load_config_file(path.name, str(path.parent.absolute()))
            except TraitError:
                raise
            except Exception as error:
                what = f"The configuration file {path} fails: {error!r}."
                raise Refused(Reason.SETTING_INVALID, what=what) from error
            self.update_config(given)
        if problems := validation.problems(self.config):
            raise Refused(Reason.SETTING_INVALID, what=" ".join(problems))

    def start(self) -> None:
        """Run until told to end."""
        logs.set_up(cast("int | str", self.log_level))
        environment = HubEnvironment.read(os.environ)
        # A supervisor that was killed while we were being loaded is not our parent now.
        starter = self.reporter.supervisor or lifeline.hub_of(os.environ)
        parent = lifeline.die_with_parent(starter)
        state = lifeline.StateFolder(Path(self.state_dir))
        asyncio.run(self._run(environment, state, parent))

    async def _run(
        self,
        environment: HubEnvironment,
        state: lifeline.StateFolder,
        parent: int,
    ) -> None:
        ending = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, ending.set)
        lifeline.watch(parent, ending.set)
        stage = standby.Standby(environment)
        server: Door | None = None
        beating: asyncio.Future[None] | None = None
        try:
            journal = self._journal(state)
            server = self._listen(environment, stage)
            self.reporter.report("ready")
            beating = asyncio.ensure_future(self.reporter.beat())
            await self._work(environment, state, stage, journal, ending)
        finally:
            log.info("service: ending")
            if beating is not None:
                beating.cancel()
            if server is not None:
                server.stop()
                await _finish_within(FAREWELL, server.close_all_connections())

    async def _work(
        self,
        environment: HubEnvironment,
        state: lifeline.StateFolder,
        stage: standby.Standby,
        journal: Journal,
        ending: asyncio.Event,
    ) -> None:
        """Wait for the journal, and work on it until it is lost, or until told to end.

        Without it nothing is done, and requests are answered with that.
        """
        try:
            taken = _taken(journal, lambda: stage.wait(Reason.JOURNAL_HELD))
            if not await _done_before(ending, taken):
                return
            hub = HubClient(
                environment.api_url,
                environment.api_token,
                ca_file=environment.hub_ca,
                own=environment.own,
            )
            parts = self._controller(hub, journal)
            async with parts as (controller, events, nodes):
                stage.application = self._application(
                    environment, state, controller, events, hub=hub, nodes=nodes
                )
                if not await _done_before(ending, controller.start()):
                    return
                self._ready = True
                log.info("service: ready at %s", environment.prefix)
                if await _done_before(ending, _lost(journal)):
                    what = "The journal was lost: its database let go of our lock."
                    raise StoreError(Reason.INTERNAL, detail=what)
        finally:
            self._ready = False
            stage.wait(Reason.SERVICE_STARTING)
            journal.close()

    @contextlib.asynccontextmanager
    async def _controller(
        self, hub: HubClient, journal: Journal
    ) -> AsyncIterator[tuple[Controller, EventLog | None, NodeWatch]]:
        """Run everything behind the routes; end it in order if that is quick."""
        folder = Path(self.state_dir)
        agent, let_go = await placement.agent_of(
            self, self._agent_token_file(), journal
        )
        idle = IdlePolicy(parent=self)
        idle.max_sample_age = max(idle.max_sample_age, 2 * self.sample_interval)
        pressure = PressurePolicy(idle, parent=self)
        under_pressure = pressure.pressure_idle_after
        guards = Guards(parent=self)
        decide = Decider(guards, [idle, pressure])
        rules = Rules(parent=self)
        naps = NapPolicy(idle, seats=self.seats_per_gpu, parent=self)
        nap_after = max(naps.usually_after, rules.longest("nap_after"))
        span = max(idle.idle_after, rules.longest("idle_after"))
        span = max(span or under_pressure, nap_after, naps.room_after)
        usual = idle.idle_after or under_pressure or span
        controller = Controller(
            journal=journal,
            agent=agent,
            hub=hub,
            decide=decide,
            choose=PreemptionPolicy(decide) if under_pressure else None,
            naps=NapDecider(guards, naps) if nap_after else None,
            policies=SessionPolicies(rules, hub, agent) if rules.rules else None,
            window=lambda: Window(
                span=span, interval=self.sample_interval, usual=usual
            ),
            clock=SystemClock(),
            settings=self.settings(),
            folder=folder,
        )
        senders, counters = self._senders(), controller.metrics_snapshot().counters
        drains = DrainWatch(agent, controller.nodes.follow)
        lost = LostNodes(agent, SystemClock(), self.node_lost_after)
        nodes = NodeWatch(
            agent,
            SystemClock(),
            controller.note_silent,
            (drains.settle, lost.settle),
        )
        try:
            async with (
                feeding(journal, self.event_log, SystemClock()) as events,
                notices.telling(journal, senders, counters),
                watching(nodes),
            ):
                try:
                    yield controller, events, nodes
                finally:
                    await _finish_within(FAREWELL, controller.stop())
        finally:
            await _finish_within(FAREWELL, let_go())
            hub.close()

    def _journal(self, state: lifeline.StateFolder) -> Journal:
        """Open the journal.

        Raises:
            Refused: its address is invalid. It is not repeated: it may hold a password.
            StoreError: it cannot be opened, and ``detail`` says why.
        """
        address = self.journal_url or f"sqlite:///{state.path}/journal.sqlite"
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

    def _agent_token_file(self) -> Path:
        """The path of the agent's token, which is there once the agent has run.

        Raises:
            Refused: it is there and may not be read.
        """
        path = Path(self.agent_token_file)
        try:
            path.read_bytes()
        except FileNotFoundError:
            log.warning("service: %s is not there yet; has the agent run?", path)
        except OSError as error:
            what = f"The agent's token file {path} cannot be read: {error.strerror}."
            raise Refused(Reason.SETTING_INVALID, what=what) from error
        return path

    def _application(
        self,
        environment: HubEnvironment,
        state: lifeline.StateFolder,
        controller: Controller,
        events: EventLog | None,
        *,
        hub: HubClient,
        nodes: NodeWatch,
    ) -> web.Application:
        """The routes, with everything behind them."""
        HubOAuth.instance(parent=self)
        context = Context(
            control=controller,
            clock=SystemClock(),
            registry=metrics.registry(controller.metrics_snapshot, nodes.now),
            templates=pages.templates(),
            spawner_token=environment.spawner_token.encode(),
            prefix=environment.prefix,
            hub_prefix=environment.hub_prefix,
            created=hub.created,
            nodes=nodes.now,
            warnings=lambda: [
                *environment.warnings,
                *controller.lately_culled(),
                *controller.culled_inside(IdlePolicy(parent=self).idle_after),
            ],
            message_url=self.message_url,
            hub_host=environment.hub_host,
            metrics_open=self.metrics_open,
            trust_plain_http=self.trust_plain_http,
            limits=self.limits(),
            refused=None if events is None else events.refused,
            ready=lambda: self._ready,
        )
        return application(context, cookie_secret=state.secret("cookie_secret"))

    def _listen(self, environment: HubEnvironment, stage: standby.Standby) -> Door:
        """Serve the current application of the standby, to all and to the spawner.

        Raises:
            Refused: the address is taken, or the spawner's socket cannot be made.
        """
        files = raise_file_limit()
        server = door(stage, max_body=MAX_BODY, files=files, xheaders=True)
        given = self.reporter.sockets()
        if given:
            server.add_sockets(given)
            return server
        path = environment.spawner_socket
        try:
            server.add_socket(unix_sockets.listening(path))
        except OSError as error:
            what = f"The socket {path} cannot be made: {error.strerror}."
            raise Refused(Reason.STATE_UNUSABLE, what=what) from error
        try:
            server.listen(environment.port, environment.host)
        except OSError as error:
            what = (
                f"The address {environment.host}:{environment.port} cannot be used:"
                f" {error.strerror}."
            )
            raise Refused(Reason.SETTING_INVALID, what=what) from error
        return server


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
    """Wait until the journal is no longer ours."""
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
    """Finish some work of the end within that time, or leave it."""
    try:
        await asyncio.wait_for(work, seconds)
    except TimeoutError:
        log.warning("service: the end took longer than %.0f s; leaving", seconds)


def main() -> None:
    """Run the service; an obstacle is a sentence and exit status 1."""
    reporter = ReclaimService.reporter = Reporter.take(os.environ)
    try:
        ReclaimService.launch_instance()
    except ReclaimError as error:
        reporter.report("failed", error.message)
        detail = error.detail.partition("\n")[0]
        _give_up(f"{error.message} {detail}".strip())
    except TraitError as error:
        reporter.report("failed", f"A setting makes no sense: {error}")
        _give_up(f"A setting makes no sense: {error}")


def _give_up(why: str) -> NoReturn:
    sys.stderr.write(f"jupyterhub-gpu-reclaim-service: {why}\n")
    sys.exit(1)


if __name__ == "__main__":
    main()
