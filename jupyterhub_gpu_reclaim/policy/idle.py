"""Decides whether a session is idle: unused, and not working."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from traitlets import Bool, Enum
from traitlets.config import Configurable

from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.common.text import duration, moment, size
from jupyterhub_gpu_reclaim.common.traits import ByteRate, Percent, Seconds
from jupyterhub_gpu_reclaim.policy.decide import allow, deny

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jupyterhub_gpu_reclaim.common.models import Decision, SessionPolicy, Usage
    from jupyterhub_gpu_reclaim.policy.decide import SessionSnapshot


#: A session whose job is due in fewer seconds is not suspended before it.
WORTH_A_SUSPEND = 900.0
#: Bytes a second more than twice what a page sends by itself that count as use.
PAGE_BURST_RATE = 1.0


class IdlePolicy(Configurable):
    idle_after = Seconds(
        900.0,
        help="""Seconds without use and without work after which a session is idle.

        Shorter gives memory and GPUs back sooner; longer spares people who come back
        soon the seconds of a resume. After a restart of the service every session is
        watched for that long before it is judged. 0: no session is ever suspended for
        being idle. Example: 1800 for half an hour.
        """,
    ).tag(config=True)

    busy_cpu_percent = Percent(
        10.0,
        allow_none=True,
        help="""Percent of one processor core that counts as work.

        Measured over all of a session's programs but its server, as the larger of the
        mean since ``idle_after`` and the mean of the last minute. Lower keeps quiet
        background jobs running; higher lets a session be suspended in spite of
        programs that poll. 0: any use that can be measured counts as work. None: the
        processor is not looked at, only kernels, terminals and notebooks. Example: 25.
        """,
    ).tag(config=True)

    busy_gpu_percent = Percent(
        5.0,
        allow_none=True,
        help="""Percent of one GPU that counts as work.

        Measured as the time in which a program of the session ran on its busiest GPU,
        between two samples; the most since ``idle_after`` counts, so that a second of
        work a minute is seen (samples come every ``ReclaimService.sample_interval``,
        10 s). A session that holds GPU memory and computes nothing is idle. 0: any use
        that can be measured counts as work. None: GPUs are not looked at. Example: 1.
        """,
    ).tag(config=True)

    busy_data_rate = ByteRate(
        20_000.0,
        allow_none=True,
        help="""Bytes a second, written or received, that count as work.

        What all of a session's programs write counts, to files, pipes and terminals,
        and beside that what their connections to other machines carry, what its server
        is sent, and what that itself sends; each as the larger of the mean since
        ``idle_after`` and the mean of the last minute. Lower keeps slow uploads alive;
        higher lets a session be suspended in spite of programs that keep a log. None:
        it is not looked at. Example: 5000.
        """,
    ).tag(config=True)

    page_data_rate = ByteRate(
        2000.0,
        allow_none=True,
        help="""Bytes a second from a page to its program that count as use.

        Of programs behind the Jupyter server (jupyter-server-proxy: VS Code, RStudio,
        Streamlit). Measured over 10 s; the most since ``idle_after`` counts. More than
        twice what the session's pages have sent in the quietest 90 s since then is use,
        too. An idle page of VS Code sends 300, one in which somebody types thousands.
        Lower sees more; higher lets pages be forgotten that send much all the time.
        None: pages are not looked at. Example: 5000.
        """,
    ).tag(config=True)

    prompt_idle_after = Seconds(
        3600.0,
        allow_none=True,
        help="""Seconds after which a cell that waits for an answer is not work.

        A cell in ``input()`` or at a debugger's prompt. Counted from the question, or
        from the session's return. Shorter gives GPUs back sooner; longer spares people
        who think about an answer a resume. 0: such a cell is never work, and the
        question counts as use like any other. None: it is busy for ever, as it is where
        our server extension is not installed in the session. Example: 7200.
        """,
    ).tag(config=True)

    connections_after = Seconds(
        3600.0,
        help="""Seconds of idleness while a program is connected to another machine.

        In place of ``idle_after``, if that is shorter: a suspend ends the connections
        of the session's programs (a database, a cluster's workers, a login by ssh).
        Established TCP connections of all programs but the server count, whether data
        moves on them or not. Longer spares more of them; shorter gives GPUs back
        sooner. 0: they are not looked at. Example: 7200.
        """,
    ).tag(config=True)

    connected_is_active = Bool(
        default_value=False,
        help="""Whether an open browser tab alone keeps a session awake.

        False: a tab that somebody forgot does not hold a GPU; it reconnects after the
        resume. True: sessions are suspended only when no tab is connected to a kernel
        or a terminal, so most will hardly ever be. Example: True for a live course.
        """,
    ).tag(config=True)

    wake_for_jobs = Enum(
        ["never", "wake", "keep"],
        default_value="never",
        help="""How scheduled notebooks are treated (jupyter-scheduler).

        A suspended session starts none; what was due meanwhile runs as soon as the
        session is back. ``never``: the session goes when it is idle. ``wake``: it is
        resumed two minutes before the job is due, and left alone if that is in less
        than a quarter of an hour. ``keep``: it is left alone as long as a job is
        scheduled. With the latter two it is also left alone while its scheduler does
        not answer, or has a schedule that is not understood. Example: "wake".
        """,
    ).tag(config=True)

    without_jupyter = Bool(
        default_value=False,
        help="""Whether a session is judged whose server has no Jupyter API.

        A single proxied program (Streamlit, RStudio, VS Code in place of the Jupyter
        server) tells nothing of what its user does. False: such a session is left
        alone. True: it is judged by processor, GPUs, data and what its page sends:
        anyone who only reads the page counts as away, and sees no warning. Example:
        True where such programs compute on GPUs.
        """,
    ).tag(config=True)

    #: After so long the newest measurement says nothing any more.
    max_sample_age = Seconds(60.0)

    def reasons(self, snapshot: SessionSnapshot, now: float) -> list[Decision]:
        terms = snapshot.terms
        limit = self.idle_after if terms.idle_after is None else terms.idle_after
        rule = terms.rule("idle_after")
        if limit == 0:
            return [deny(Reason.IDLE_OFF, rule=rule)]
        against = self.against(snapshot, now, limit, rule)
        against += self.connected(snapshot, now) + self.jobs_due(snapshot, now)
        if against:
            return against
        idle = duration(idle_for(snapshot, now))
        limits = duration(limit) + rule
        decision = allow(Reason.IDLE, now, idle=idle, idle_after=limits)
        mode = mode_for_jobs(terms, self.wake_for_jobs)
        told = job_told(snapshot.usage, wakes=mode == "wake")
        message = f"{decision.message} {told}".strip()
        return [msgspec.structs.replace(decision, message=message)]

    def jobs_due(self, snapshot: SessionSnapshot, now: float) -> list[Decision]:
        usage = snapshot.usage
        mode = mode_for_jobs(snapshot.terms, self.wake_for_jobs)
        if usage is None or not usage.jupyter or mode == "never" or usage.job_due == 0:
            return []
        rule = snapshot.terms.rule("wake_for_jobs")
        if usage.job_due is None:
            return [deny(Reason.JOB_DUE, due="a time that is not known", rule=rule)]
        if mode == "wake" and usage.job_due - now > WORTH_A_SUSPEND:
            return []
        return [deny(Reason.JOB_DUE, due=moment(usage.job_due), rule=rule)]

    def against(
        self, snapshot: SessionSnapshot, now: float, idle_after: float, rule: str = ""
    ) -> list[Decision]:
        """Why it was not idle that long; ``rule``, a sentence's end, set the time."""
        usage = snapshot.usage
        if usage is not None and not usage.jupyter and not self.without_jupyter:
            return [deny(Reason.NO_JUPYTER)]
        if usage is None or self._is_missing(usage, snapshot.terms, now):
            return [deny(Reason.SAMPLES_MISSING)]
        busy = list(self._busy(usage, snapshot.terms, now, idle_after))
        return busy + _too_soon(usage, now, idle_after, rule)

    def connected(self, snapshot: SessionSnapshot, now: float) -> list[Decision]:
        usage = snapshot.usage
        limit = self._setting_for(snapshot.terms, "connections_after")
        idle = idle_for(snapshot, now)
        if usage is None or not usage.outside or limit is None or idle >= limit:
            return []
        others, *more = usage.outside
        others += f" and {len(more)} more" if more else ""
        return [
            deny(
                Reason.CONNECTED_OUTSIDE,
                now - idle + limit,
                others=others,
                age=duration(idle),
                limit=duration(limit),
                rule=snapshot.terms.rule("connections_after"),
            )
        ]

    def _setting_for(self, terms: SessionPolicy, setting: str) -> float | None:
        found: float | None = getattr(terms if setting in terms.by else self, setting)
        return found

    def _is_missing(self, usage: Usage, terms: SessionPolicy, now: float) -> bool:
        needed = [usage.last_active, usage.kernels, usage.terminals]
        if self._setting_for(terms, "busy_cpu_percent") is not None:
            needed.append(usage.cpu_percent)
        if self._setting_for(terms, "busy_gpu_percent") is not None:
            needed.append(usage.gpu_percent)
        if self._setting_for(terms, "connected_is_active"):
            needed.append(usage.connections)
        age = usage.sample_age + max(0.0, now - usage.at)
        return not usage.complete or None in needed or age > self.max_sample_age

    def _busy(
        self, usage: Usage, terms: SessionPolicy, now: float, idle_after: float
    ) -> Iterator[Decision]:
        if usage.busy_kernel is not None:
            yield deny(Reason.KERNEL_BUSY, name=usage.busy_kernel)
        if usage.unknown_kernel is not None:
            yield deny(Reason.KERNEL_UNKNOWN, name=usage.unknown_kernel)
        if usage.prompt_kernel is not None and usage.prompt_since is not None:
            age = now - usage.prompt_since
            yield from self._open_prompt(usage.prompt_kernel, terms, age, now)
        limit, percent = self._setting_for(terms, "busy_cpu_percent"), usage.cpu_percent
        if limit is not None and percent is not None and percent > limit:
            rule = terms.rule("busy_cpu_percent")
            yield deny(Reason.CPU_BUSY, percent=percent, limit=limit, rule=rule)
        limit = self._setting_for(terms, "busy_gpu_percent")
        percent = usage.gpu_peak_percent
        if limit is not None and percent is not None and percent > limit:
            yield deny(
                Reason.GPU_BUSY,
                percent=percent,
                limit=limit,
                idle_after=duration(idle_after),
                rule=terms.rule("busy_gpu_percent"),
            )
        limit, rate = self._setting_for(terms, "busy_data_rate"), usage.data_rate
        if limit is not None and rate is not None and rate > limit:
            yield deny(
                Reason.DATA_MOVES,
                rate=size(round(rate)),
                limit=size(round(limit)),
                rule=terms.rule("busy_data_rate"),
            )
        yield from self._pages_in_use(usage, terms, idle_after)
        if self._setting_for(terms, "connected_is_active") and usage.connections:
            rule = terms.rule("connected_is_active")
            yield deny(Reason.CONNECTED, count=usage.connections, rule=rule)

    def _pages_in_use(
        self, usage: Usage, terms: SessionPolicy, idle_after: float
    ) -> Iterator[Decision]:
        rate, quiet = usage.page_peak_rate, usage.page_quiet_rate
        limit = self._setting_for(terms, "page_data_rate")
        if limit is None or rate is None:
            return
        if quiet is not None:
            limit = min(limit, 2 * quiet + PAGE_BURST_RATE)
        if rate > limit:
            yield deny(
                Reason.PAGE_USED,
                rate=size(round(rate)),
                limit=size(round(limit)),
                idle_after=duration(idle_after),
                rule=terms.rule("page_data_rate"),
            )

    def _open_prompt(
        self, name: str, terms: SessionPolicy, age: float, now: float
    ) -> Iterator[Decision]:
        limit = self._setting_for(terms, "prompt_idle_after")
        if limit is None:
            yield deny(Reason.KERNEL_BUSY, name=name)
        elif age < limit:
            ages = duration(max(0.0, age))
            limits = duration(limit) + terms.rule("prompt_idle_after")
            yield deny(
                Reason.PROMPT_OPEN, now - age + limit, name=name, age=ages, limit=limits
            )


def mode_for_jobs(terms: SessionPolicy | None, usual: str) -> str:
    ruled = terms.wake_for_jobs if terms is not None else None
    return usual if ruled is None else ruled


def job_told(usage: Usage | None, *, wakes: bool) -> str:
    """What a suspend means for its next scheduled job, in a sentence."""
    if usage is None or not usage.job_due:
        return ""
    due = moment(usage.job_due)
    if wakes:
        return f"It is resumed for its scheduled job, due at {due}."
    return f"Its scheduled job, due at {due}, runs only once the session is back."


def idle_for(snapshot: SessionSnapshot, now: float) -> float:
    """Seconds since the last known use; 0 if none is known."""
    usage = snapshot.usage
    if usage is None or usage.last_active is None:
        return 0.0
    return max(0.0, now - usage.last_active)


def _too_soon(usage: Usage, now: float, idle_after: float, rule: str) -> list[Decision]:
    """Reasons that time alone will end, the latest first."""
    soon = []
    if usage.last_active is not None and now - usage.last_active < idle_after:
        soon.append(
            deny(
                Reason.RECENTLY_ACTIVE,
                usage.last_active + idle_after,
                age=duration(now - usage.last_active),
                what=usage.last_active_what,
                idle_after=duration(idle_after) + rule,
            )
        )
    if usage.watched < idle_after:
        soon.append(
            deny(
                Reason.WINDOW_TOO_SHORT,
                usage.at - usage.sample_age - usage.watched + idle_after,
                watched=duration(usage.watched),
                idle_after=duration(idle_after),
            )
        )
    return sorted(soon, key=lambda verdict: -(verdict.at or 0.0))
