"""How often the rules of idleness are right: situations, played and judged.

    sudo .venv/bin/python -m benchmarks.idle_corpus [--only WORDS] [--at-once 6]

Each situation of ``idle_situations.py`` is played in a real Jupyter server of its own
(``idle_stage.py``), watched by the real sampler, and judged by the real policy: by the
rules of today, and by those before what is not idle was looked at more closely, from
the same samples. Times are seconds in place of minutes (``IDLE_AFTER`` for
``IdlePolicy.idle_after`` and so on). Needs ``benchmarks/requirements.txt``, tmux and
curl, and takes eight minutes of two cores, and as many again where the programs of
``idle_programs.py`` are installed. Prints a table: what it is, what it ought to be
called, the verdicts and their reasons; what pages of those programs have sent; then the
totals of sessions that would be suspended and should not, and of those that would be
kept and need not.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from benchmarks.idle_situations import SITUATIONS
from benchmarks.idle_stage import PlayedCard, Stage
from jupyterhub_gpu_reclaim.common.clock import SystemClock
from jupyterhub_gpu_reclaim.common.models import Phase
from jupyterhub_gpu_reclaim.policy.decide import SessionSnapshot
from jupyterhub_gpu_reclaim.policy.idle import IdlePolicy
from jupyterhub_gpu_reclaim.sampling.nvml import Nvml
from jupyterhub_gpu_reclaim.sampling.sampler import Sampler
from jupyterhub_gpu_reclaim.sampling.window import Window
from tests.support.network import be_alone
from tests.support.other_machine import other_machine

if TYPE_CHECKING:
    from benchmarks.idle_situations import Situation
    from jupyterhub_gpu_reclaim.common.models import Decision, Sample, Usage

#: Seconds in place of 15 minutes, of an hour, of an hour, and of ten minutes.
IDLE_AFTER, PROMPT_AFTER, CONNECTIONS_AFTER, UNUSED = 20.0, 40.0, 40.0, 15.0
#: Seconds in which a page sends what it sends by itself, in place of 90.
PAGE = 40.0
INTERVAL = 1.0
#: Between what was done last and the first sample.
SETTLE = 3.0


@dataclass(frozen=True)
class Judgement:
    """What one set of rules says of a situation."""

    idle: bool
    code: str
    usage: Usage

    @classmethod
    def of(cls, decision: Decision, usage: Usage) -> Judgement:
        """Of the deciding reason."""
        return cls(decision.reclaim, decision.code, usage)


@dataclass(frozen=True)
class Result:
    """A situation with its verdicts; ``trouble`` if it could not be played."""

    situation: Situation
    today: Judgement | None = None
    before: Judgement | None = None
    trouble: str = ""


def today(samples: list[Sample], idle_after: float) -> Judgement:
    """By the rules as they are."""
    policy = IdlePolicy(
        idle_after=idle_after,
        prompt_idle_after=PROMPT_AFTER,
        connections_after=CONNECTIONS_AFTER,
    )
    window = Window(span=idle_after, interval=3 * INTERVAL, unused=UNUSED, page=PAGE)
    return _judged(policy, window, samples)


def before(samples: list[Sample], idle_after: float) -> Judgement:
    """By the rules before: no data, pages, prompts, connections, other terminals."""
    policy = IdlePolicy(
        idle_after=idle_after,
        busy_data_rate=None,
        page_data_rate=None,
        prompt_idle_after=None,
        connections_after=0,
    )
    window = Window(span=idle_after, interval=3 * INTERVAL, unused=math.inf)
    unseen = {"last_typed": None, "last_asked": None}
    blind = [msgspec.structs.replace(one, **unseen) for one in samples]
    return _judged(policy, window, blind, mean=True)


def _judged(
    policy: IdlePolicy, window: Window, samples: list[Sample], *, mean: bool = False
) -> Judgement:
    for sample in samples:
        window.add(sample)
    now = samples[-1].at
    usage = window.usage(now)
    if mean:
        usage = msgspec.structs.replace(usage, gpu_peak_percent=usage.gpu_percent)
    snapshot = SessionSnapshot(
        key=samples[-1].key, phase=Phase.RUNNING, usage=usage, started_at=0.0
    )
    return Judgement.of(policy.reasons(snapshot, now)[0], usage)


def watch(stage: Stage, seconds: float) -> list[Sample]:
    """Samples of so many seconds."""

    async def look() -> list[Sample]:
        sampler = Sampler(SystemClock(), Nvml(PlayedCard(stage)))
        taken, begun = [], time.monotonic()
        try:
            while time.monotonic() - begun < seconds:
                taken += await sampler.sample_all([stage.target()])
                await asyncio.sleep(INTERVAL)
        finally:
            sampler.close()
        return taken

    return asyncio.run(look())


def played(situation: Situation, *, extension: bool) -> tuple[list[Sample], float]:
    """Samples of a situation, and the time after which it should be idle.

    Raises:
        RuntimeError: something of it did not go on.
    """
    with tempfile.TemporaryDirectory(prefix="gri-", dir="/tmp") as name:
        stage = Stage(Path(name), extension=extension)
        try:
            situation.play(stage)
            time.sleep(SETTLE)
            samples = watch(stage, situation.watched or IDLE_AFTER + 4)
            if stage.troubles:
                raise RuntimeError("; ".join(stage.troubles))
        finally:
            stage.close()
    return samples, situation.idle_after or IDLE_AFTER


def judge(situation: Situation) -> Result:
    """Play it and judge it; once more without our extension, if that matters."""
    if situation.program is not None and situation.program.folder is None:
        lacks = f"not played: {situation.program.installed} is not on the PATH"
        return Result(situation, trouble=lacks)
    try:
        samples, after = played(situation, extension=True)
        now = today(samples, after)
        if situation.needs_extension:
            samples, after = played(situation, extension=False)
        result = Result(situation, now, before(samples, after))
    except Exception:  # noqa: BLE001 - the others are played
        result = Result(situation, trouble=traceback.format_exc())
    code = result.today.code if result.today else result.trouble
    print(f"# {situation.title}: {code}", file=sys.stderr)
    return result


def table(results: list[Result]) -> str:
    """As Markdown."""
    lines = [
        "| situation | ought to be | today | before | who would complain |",
        "|---|---|---|---|---|",
    ]
    for result in results:
        one = result.situation
        lines.append(
            f"| {one.title} | {'idle' if one.is_idle else 'in use'}"
            f" | {_cell(one, result.today)} | {_cell(one, result.before)}"
            f" | {one.complains} |"
        )
    return "\n".join(lines)


def _cell(one: Situation, judgement: Judgement | None) -> str:
    if judgement is None:
        return "not played"
    words = "idle" if judgement.idle else f"in use (`{judgement.code}`)"
    return words if judgement.idle == one.is_idle else f"**{words}: wrong**"


def pages(results: list[Result]) -> str:
    """What pages of real programs have sent, in bytes a second; as Markdown."""
    lines = [
        "| situation | the most of 10 s | by itself | today |",
        "|---|--:|--:|---|",
    ]
    for result in results:
        if result.situation.program is None or result.today is None:
            continue
        usage = result.today.usage
        lines.append(
            f"| {result.situation.title} | {usage.page_peak_rate or 0:.1f}"
            f" | {usage.page_quiet_rate or 0:.1f}"
            f" | {_cell(result.situation, result.today)} |"
        )
    return "\n".join(lines)


def totals(results: list[Result]) -> str:
    """How many are wrong, each way, by both sets of rules; as Markdown."""
    whole = [one for one in results if one.today and one.before]
    lines = ["| | today | before | of |", "|---|--:|--:|--:|"]
    for is_idle, name in (
        (False, "in use, and would be suspended"),
        (True, "idle, and would be kept"),
    ):
        mine = [one for one in whole if one.situation.is_idle is is_idle]
        wrong = [
            sum(j is not None and j.idle is not is_idle for j in judged)
            for judged in ([o.today for o in mine], [o.before for o in mine])
        ]
        lines.append(f"| {name} | {wrong[0]} | {wrong[1]} | {len(mine)} |")
    return "\n".join(lines)


def main() -> None:
    """Play all situations, or some."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="those with these words")
    parser.add_argument("--at-once", type=int, default=6)
    options = parser.parse_args()
    be_alone()
    chosen = [one for one in SITUATIONS if options.only in one.title]
    with other_machine(), ThreadPoolExecutor(options.at_once) as pool:
        results = list(pool.map(judge, chosen))
    print(table(results), pages(results), totals(results), sep="\n\n")
    for result in results:
        if result.trouble:
            print(f"\n{result.situation.title}:\n{result.trouble}")


if __name__ == "__main__":
    main()
