"""Sessions in pods: KubeSpawner's, with the session's init in them.

``ReclaimKubeSpawner`` is what a ``jupyterhub_config.py`` names (``gpu-reclaim``). Its
pods are KubeSpawner's, with all its settings, profiles and the administrator's
``modify_pod_hook``; ``pod.py`` adds the init. The mixin decides when to start, restore
or release; this module makes pods and ends them, and never lets two use one volume: a
pod counts as ended when the kubelet has reported its containers dead, and none is ever
deleted by force.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import ClientError
from jupyterhub.utils import exponential_backoff
from kubernetes_asyncio.client import ApiException, V1Preconditions
from kubespawner import KubeSpawner
from tornado.ioloop import PeriodicCallback
from traitlets import default

from jupyterhub_gpu_reclaim.common import endings
from jupyterhub_gpu_reclaim.common.decoders import convert
from jupyterhub_gpu_reclaim.common.errors import Refused, Unreachable
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.hub.kube import pod as pods
from jupyterhub_gpu_reclaim.hub.kube import pod_events, watches
from jupyterhub_gpu_reclaim.hub.spawner import given
from jupyterhub_gpu_reclaim.hub.spawner.mixin import ReclaimMixin
from jupyterhub_gpu_reclaim.hub.spawner.placement import ImageTraits
from jupyterhub_gpu_reclaim.hub.spawner.progress import interleaved
from jupyterhub_gpu_reclaim.hub.spawner.state import Choice, Location
from jupyterhub_gpu_reclaim.service.clients.pods import CONTAINER, Pod

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from jupyterhub_gpu_reclaim.common.errors import ReclaimError

#: Seconds between two looks at what a pod waits for.
LOOK_SECONDS = 1.0
#: Seconds for the kubelet to report the death of a container that was just ended.
REPORT_SECONDS = 15.0
#: Statuses of an API server that is too busy or being restarted.
_BUSY = {429, 500, 502, 503, 504}
#: Errors where it does not answer at all.
_AWAY = (ClientError, OSError, TimeoutError)
#: Statuses for a pod that it will not take: a policy, a webhook, missing rights.
_REFUSED = {400, 403, 422}
#: Seconds between two tries for a place, where a quota is used up or a node had no room
#: after all; each is a line in the Hub's log.
RETRY_SECONDS = 10.0
#: Message for a return for which something else was chosen.
CHOSEN_NOW = "It comes back as it was started; what you chose is for a fresh start."
#: Set while KubeSpawner's own code runs, which calls ``self.stop`` to tidy up.
_inside: ContextVar[bool] = ContextVar("inside KubeSpawner", default=False)


class SessionPodSpawner(ImageTraits, KubeSpawner):
    """Makes, watches and ends one session's pod; suspends none."""

    user_options: Any  # of JupyterHub
    _quota = ""  #: the API server's words while the quota is used up
    #: Nodes that did not take the pod of this start after all, and their words.
    _rejections: tuple[tuple[str, str], ...] = ()
    _note = ""  #: message for a return that is not as was chosen now
    _profile = ""  #: slug of the profile in use
    _overrides: tuple[dict[str, Any], ...] = ()  #: settings that it made

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        #: Profiles as configured; a hook or a group's override may set others for this
        #: user.
        self._profiles_of_all = self.profile_list

    # --- the pod ---

    @default("cmd")
    def _server_command(self) -> list[str]:
        # Not the command of the image, KubeSpawner's default: only the node knows it.
        return ["jupyterhub-singleuser"]

    async def get_pod_manifest(self) -> Any:
        purpose, named = self.reclaim_purpose(), self.reclaim_launch.image
        if saved := purpose.saved:
            self._note = pods.other_image(self.image, named) or self._note
            image = pods.saved_image(saved.image, named)
            saved = msgspec.structs.replace(saved, image=image)
            purpose = msgspec.structs.replace(purpose, saved=saved)
        if self._note:
            self.log.info("%s: %s", self._reference, self._note)
        avoid = tuple(dict(self._rejections))
        return pods.prepared(await super().get_pod_manifest(), purpose, avoid)

    # --- what was chosen ---

    async def load_user_options(self) -> None:
        """Load the choice: today's for a fresh start, its own for a return.

        A former choice counts as it is defined today. If it is not offered any more (an
        image of last month), it counts as it was defined then. But a list that a
        function makes or a hook sets may leave out what this user has no right to any
        more: then the return is refused.

        Raises:
            Refused: the choice has gone, and may have been taken away.
        """
        choice = self.reclaim_launch.choice
        if self.reclaim_launch.mode != "hold" or choice is None:
            self._overrides, self._note = (), ""
            await super().load_user_options()
            return
        chosen = {**choice.options, **self.user_options}
        self._note = "" if chosen == choice.options else CHOSEN_NOW
        self.user_options = dict(choice.options)
        try:
            await super().load_user_options()
        except (KeyError, ValueError) as error:
            why = f"no such choice: {error}"
            of_its_own = callable(self.profile_list) or (
                self.profile_list != self._profiles_of_all
            )
            if of_its_own or not choice.overrides:
                raise Refused(Reason.PROFILE_GONE, why=why) from None
            self.log.warning("%s: it comes back as it was: %s", self._reference, why)
            for settings in choice.overrides:
                super()._apply_overrides(settings)

    def _apply_overrides(self, spawner_override: dict[str, Any]) -> None:
        settings: dict[str, Any] = {}
        for name, value in spawner_override.items():
            settings[name] = value(self) if callable(value) else value
            super()._apply_overrides({name: settings[name]})
        self._overrides = (*self._overrides, settings)

    def _get_profile(self, slug: str | None, profile_list: list[Any]) -> Any:
        # Noted, since another may be the default later.
        profile = super()._get_profile(slug, profile_list)
        self._profile = profile["slug"]
        return profile

    def _pod_json(self) -> Any:
        watch = self.pod_reflector
        return None if watch is None else watch.pods.get(self._reference)

    def _pod(self) -> Pod | None:
        found = self._pod_json()
        return None if found is None else convert(found, Pod)

    @property
    def _reference(self) -> str:
        return f"{self.namespace}/{self.pod_name}"

    # --- its watches ---

    @property
    def pod_reflector(self) -> Any:
        # Each look restarts KubeSpawner's watch if it has ended.
        return _kept_up(super().pod_reflector)

    @property
    def event_reflector(self) -> Any:
        return _kept_up(super().event_reflector)

    async def _start_reflector(self, kind: str, **more: Any) -> Any:
        """Start a watch, or wait for one that has ended to be renewed.

        Raises:
            Unreachable: the API server does not answer.
        """
        key = self._get_reflector_key(kind)
        known = self.reflectors.get(key)
        if known is not None:
            await watches.renewed(known)
        try:
            return await super()._start_reflector(kind, **more)
        except (*_AWAY, ApiException) as error:
            # It would pass for one that goes on, and nothing is in its list.
            if (failed := self.reflectors.get(key)) and failed.watch_task is None:
                del self.reflectors[key]
                failed.first_load_future.exception()  # else asyncio reports it as lost
            if isinstance(error, ApiException) and error.status not in _BUSY:
                raise
            detail = f"{type(error).__name__}: {error}"
            raise Unreachable(Reason.CLUSTER_UNREACHABLE, detail=detail) from None

    async def _start_watching_events(self, replace: bool = False) -> Any:
        # Only words for people: nothing waits for them.
        with suppress(Unreachable):
            return await super()._start_watching_events(replace)

    # --- start ---

    async def start(self) -> Any:
        """Start the pod; returns its address when it runs.

        Raises:
            Refused: it ended at once, or was to hold a place and did not run in time.
        """
        # The Hub's own limit would end this without a reason.
        limit = max(0.8 * self.start_timeout, self.start_timeout - 15.0)
        hold = self.reclaim_launch.mode == "hold"
        self._rejections = ()
        try:
            async with asyncio.timeout(limit if hold else None):
                while (where := await self._start_while_it_lives()) is None:
                    pass
                return where
        except TimeoutError:
            if not hold:
                raise
            if watches.has_ended(self.pod_reflector):
                raise Unreachable(Reason.CLUSTER_UNREACHABLE) from None
            why = self._quota or self._last_rejection()
            why = why or pod_events.obstacle(self._pod()) or "its pod did not start"
            raise Refused(Reason.NOT_PLACED, seconds=limit, why=why) from None

    async def _start_while_it_lives(self) -> Any:
        """Run KubeSpawner's start, which alone would wait for a dead pod to its limit.

        None: its node rejected the pod; another may take the next one.

        Raises:
            Refused: the pod has ended, or a node rejects a new session's.
        """
        starting = super().start()
        try:
            while not (await asyncio.wait({starting}, timeout=LOOK_SECONDS))[0]:
                pod = self._pod()
                if pod is None or not self._is_ours(pod) or not pod.over:
                    continue
                if not (why := pod_events.rejection(pod)):
                    raise Refused(Reason.POD_ENDED, why=pod_events.obstacle(pod))
                await self._send_elsewhere(pod.node or "?", why)
                return None
            return starting.result()
        finally:
            starting.cancel()

    async def _send_elsewhere(self, node: str, why: str) -> None:
        """Delete a pod that its node does not run, and wait a while.

        Raises:
            Refused: it is a new session's, and its user may start another.
        """
        if self.reclaim_launch.mode != "hold":
            raise Refused(Reason.POD_REJECTED, node=node, why=why)
        self.log.warning("%s: %s did not take it: %s", self._reference, node, why)
        self._rejections = (*self._rejections, (node, why))
        await SessionPodSpawner.stop(self, now=True)
        await asyncio.sleep(RETRY_SECONDS)

    async def _start(self) -> Any:
        _inside.set(True)  # in a task of its own
        return await super()._start()

    async def _make_create_pod_request(self, pod: Any, request_timeout: int) -> Any:
        """Ask for the pod, unless a hook has removed the init from it.

        If the quota is used up a place is requested again, until the start's limit.

        Raises:
            Refused: a place was to be held, and this pod would start a new session, or
                give its session something else; or the API server rejects it.
        """
        hold = self.reclaim_launch.mode == "hold"
        if not pods.holds(pod, self.reclaim_purpose()):
            if hold:
                why = "a hook has removed its init"
                raise Refused(Reason.PLACE_UNSUITABLE, place="pod", why=why)
            self.log.warning("%s: a hook has removed its init", self._reference)
        launch = self.reclaim_launch
        self.reclaim_given = given.settle(launch, pods.variables(pod), pods.mounts(pod))
        try:
            while True:
                try:
                    return await super()._make_create_pod_request(pod, request_timeout)
                except _AWAY:
                    return False  # KubeSpawner asks again, more and more rarely
                except ApiException as error:
                    if error.status in _BUSY:
                        return False
                    if error.status not in _REFUSED:
                        raise
                    why = pod_events.refusal(error.body)
                    if not (hold and "exceeded quota" in why):
                        who = "The cluster"
                        raise Refused(
                            Reason.PLACE_REFUSED, who=who, place="pod", why=why
                        ) from None
                    self._quota = why
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            self._quota = ""

    @property
    def events(self) -> list[Any]:
        # Of this very pod: the former one had the same name.
        pod = self._pod()
        if pod is None or not self._is_ours(pod):
            return []
        return [
            event
            for event in super().events
            if event["involvedObject"].get("uid") == pod.uid
        ]

    def _is_ours(self, pod: Pod) -> bool:
        return pod.incarnation == self.reclaim_launch.incarnation

    async def progress(self) -> AsyncIterator[dict[str, Any]]:
        events = interleaved(super().progress(), self._waits_for, LOOK_SECONDS)
        async for event in events:
            yield event

    def _waits_for(self) -> str:
        if self._quota:
            return f"Waiting for the namespace's quota: {self._quota}"
        if away := self._last_rejection():
            return f"Waiting for another machine: {away}"
        return pod_events.sentence(self._pod(), self._all_pods()) or self._note

    def _all_pods(self) -> Iterator[Pod]:
        watch = self.pod_reflector
        for found in watch.pods.values() if watch is not None else ():
            yield convert(found, Pod)

    def is_pod_running(self, pod: Any) -> bool:
        # A sidecar that ended would keep the pod from ever being ready: ours are not
        # started again.
        return bool(super().is_pod_running(pod and pod_events.without_ended(pod)))

    def _last_rejection(self) -> str:
        if not self._rejections or self._pod() is not None:
            return ""
        node, why = self._rejections[-1]
        return f"{node} did not take it ({why})"

    # --- watch and end ---

    async def poll(self) -> int | None:
        token = _inside.set(True)
        try:
            status: int | None = await super().poll()
        except Unreachable as error:
            self.log.warning("%s: not looked at: %s", self._reference, error)
            return None  # nothing is known, so nothing has ended
        finally:
            _inside.reset(token)
        return status

    async def _make_delete_pod_request(
        self, pod_name: str, delete_options: Any, grace_seconds: int, *more: Any
    ) -> Any:
        """Delete that very pod, never by force.

        A grace of 0 takes the pod out of the API at once, while its containers may live
        on for seconds: the next pod would be on the same volume.
        """
        grace = max(1, grace_seconds or 0)
        delete_options.grace_period_seconds = grace
        pod = self._pod()
        if pod is not None and pod_name == self.pod_name:
            delete_options.preconditions = V1Preconditions(uid=pod.uid)
        try:
            return await super()._make_delete_pod_request(
                pod_name, delete_options, grace, *more
            )
        except _AWAY:
            return False
        except ApiException as error:
            if error.status == 409 or error.status in _BUSY:
                return False  # another one of that name by now, or too busy: again
            raise


class ReclaimKubeSpawner(ReclaimMixin, SessionPodSpawner):
    """Sessions in pods that can be suspended and resumed."""

    _glances: PeriodicCallback | None = None
    _lived = False  #: whether it did at the last glance

    def start_polling(self) -> None:
        # Also at once when the watch reports the pod's end.
        super().start_polling()
        if self._poll_callback is not None:
            self._lived = True
            self._glances = PeriodicCallback(self._glance, LOOK_SECONDS * 1000)
            self._glances.start()

    def stop_polling(self) -> None:
        if self._glances is not None:
            self._glances.stop()
            self._glances = None
        super().stop_polling()

    async def _glance(self) -> None:
        # The watch costs nothing; the next poll may be far off.
        lived, self._lived = self._lived, self.reclaim_alive()
        if lived and not self._lived:
            await self.poll_and_notify()

    async def stop(self, now: bool = False) -> None:
        # KubeSpawner's own tidying neither stops nor releases.
        if _inside.get():
            await SessionPodSpawner.stop(self, now)
        else:
            await super().stop(now)

    def reclaim_location(self) -> Location:
        pod = self._pod()
        return Location(pod=pod.uid if pod else "", name=self.pod_name)

    def reclaim_image(self) -> str:
        return str(self.image)

    def reclaim_choice(self) -> Choice:
        profile = {"profile": self._profile} if self._profile else {}
        # A hold has its variables; they may be secrets, and the state is shown.
        overrides = tuple(
            {name: v for name, v in each.items() if name != "environment"}
            for each in self._overrides
        )
        try:
            json.dumps(overrides)
        except (TypeError, ValueError):
            overrides = ()  # objects of a client, which no database keeps
        return Choice(
            options={**self.user_options, **profile},
            overrides=overrides,
            given=dict(self.reclaim_given),
        )

    def reclaim_take(self, place: Location) -> None:
        if place.name:
            self.pod_name = place.name
            self.dns_name = self.dns_name_template.format(
                namespace=self.namespace, name=place.name
            )

    def reclaim_alive(self) -> bool:
        # A pod that is not known yet (after a restart of the Hub) counts as alive,
        # since nothing may be ended or replaced without a report.
        watch, uid = self.pod_reflector, self.reclaim_pointer.location.pod
        if watch is None or not watch.first_load_future.done():
            return bool(uid)
        pod = self._pod()
        return pod is not None and uid in {"", pod.uid} and not pod.over

    async def reclaim_former(self) -> bool:
        await self._start_watching_pods()
        pod = self._pod()
        return pod is not None and not pod.incarnation and not pod.over

    async def reclaim_died(self) -> bool:
        with suppress(TimeoutError, Unreachable):
            await self._start_watching_pods()
            await exponential_backoff(
                lambda: not self.reclaim_alive(),
                f"pod {self._reference} did not end",
                timeout=REPORT_SECONDS,
            )
        return not self.reclaim_alive()

    def reclaim_ending(self, status: Any) -> ReclaimError:
        # The service, which watches pods, may know more.
        if self._pod() is None and status == 1:  # KubeSpawner's word for that
            return endings.by_itself("its pod is gone")
        return super().reclaim_ending(status)

    async def reclaim_find(self, incarnation: str) -> Location | None:
        await self._start_watching_pods()
        for pod in self._all_pods():
            if pod.incarnation == incarnation and not pod.over:
                return Location(pod=pod.uid, name=pod.metadata.name)
        return None

    async def reclaim_variable(self, name: str) -> str:
        await self._start_watching_pods()
        found = self._pod_json()
        for container in found["spec"]["containers"] if found else ():
            for variable in container.get("env") or ():
                if container["name"] == CONTAINER and variable["name"] == name:
                    return str(variable.get("value") or "")
        return ""

    async def reclaim_where(self, port: int) -> Any:
        del port  # it stands in the pod
        await self._start_watching_pods()
        return self._get_pod_url(self._pod_json())

    async def reclaim_waiting(self, tell: Callable[[str], None]) -> None:
        async for event in SessionPodSpawner.progress(self):
            tell(event["message"])
        # KubeSpawner's events may be turned off; the queue is shown all the same.
        reported = ""
        while True:
            words = self._waits_for()
            if words and words != reported:
                tell(words)
            reported = words
            await asyncio.sleep(LOOK_SECONDS)

    async def reclaim_end(self) -> None:
        # The next pod has the same name, so this waits until it is free.
        try:
            async with asyncio.timeout(REPORT_SECONDS):
                await SessionPodSpawner.stop(self, now=True)
        except (TimeoutError, Unreachable) as error:
            why = str(error) or "its kubelet has not reported it dead"
            self.log.warning("%s: the pod has not ended yet: %s", self._reference, why)


def _kept_up(watch: Any) -> Any:
    if watch is not None:
        watches.renew(watch)
    return watch
