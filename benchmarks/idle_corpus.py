"""How often the rules of idleness are right: situations, played and judged.

    sudo .venv/bin/python -m benchmarks.idle_corpus [--only WORDS] [--at-once 6]

Each situation of ``idle_situations.py`` is played in a real Jupyter server of its own
(``idle_stage.py``), watched by the real sampler, and judged by the real policy. Times
are seconds in place of minutes (``IDLE_AFTER`` for
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
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

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
    from jupyterhub_gpu_reclaim.common.models import Sample, Usage

#: Seconds in place of 15 minutes, of an hour, of an hour, and of ten minutes.
IDLE_AFTER, PROMPT_AFTER, CONNECTIONS_AFTER, UNUSED = 20.0, 40.0, 40.0, 15.0
#: Seconds in which a page sends what it sends by itself, in place of 90.
PAGE = 40.0
INTERVAL = 1.0
#: Between what was done last and the first sample.
SETTLE = 3.0


@dataclass(frozen=True)
class Judgement:
    """What the rules say of a situation, by the deciding reason."""

    idle: bool
    code: str
    usage: Usage


@dataclass(frozen=True)
class Result:
    """A situation with its verdict; ``trouble`` if it could not be played."""

    situation: Situation
    judgement: Judgement | None = None
    trouble: str = ""


def judged(samples: list[Sample], idle_after: float) -> Judgement:
    """By the rules as they are."""
    policy = IdlePolicy(
        idle_after=idle_after,
        prompt_idle_after=PROMPT_AFTER,
        connections_after=CONNECTIONS_AFTER,
    )
    window = Window(span=idle_after, interval=3 * INTERVAL, unused=UNUSED, page=PAGE)
    for sample in samples:
        window.add(sample)
    now = samples[-1].at
    usage = window.usage(now)
    snapshot = SessionSnapshot(
        key=samples[-1].key, phase=Phase.RUNNING, usage=usage, started_at=0.0
    )
    decision = policy.reasons(snapshot, now)[0]
    return Judgement(decision.reclaim, decision.code, usage)


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
            sampler.client.close()
        return taken

    return asyncio.run(look())


def played(situation: Situation) -> tuple[list[Sample], float]:
    """Samples of a situation, and the time after which it should be idle.

    Raises:
        RuntimeError: something of it did not go on.
    """
    with tempfile.TemporaryDirectory(prefix="gri-", dir="/tmp") as name:
        stage = Stage(Path(name))
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
    """Play it and judge it."""
    if situation.program is not None and situation.program.folder is None:
        lacks = f"not played: {situation.program.installed} is not on the PATH"
        return Result(situation, trouble=lacks)
    try:
        result = Result(situation, judged(*played(situation)))
    except Exception:  # noqa: BLE001 - the others are played
        result = Result(situation, trouble=traceback.format_exc())
    code = result.judgement.code if result.judgement else result.trouble
    print(f"# {situation.title}: {code}", file=sys.stderr)
    return result


def table(results: list[Result]) -> str:
    """As Markdown."""
    lines = [
        "| situation | ought to be | judged | who would complain |",
        "|---|---|---|---|",
    ]
    for result in results:
        one = result.situation
        lines.append(
            f"| {one.title} | {'idle' if one.is_idle else 'in use'}"
            f" | {_cell(one, result.judgement)} | {one.complains} |"
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
        "| situation | the most of 10 s | by itself | judged |",
        "|---|--:|--:|---|",
    ]
    for result in results:
        if result.situation.program is None or result.judgement is None:
            continue
        usage = result.judgement.usage
        lines.append(
            f"| {result.situation.title} | {usage.page_peak_rate or 0:.1f}"
            f" | {usage.page_quiet_rate or 0:.1f}"
            f" | {_cell(result.situation, result.judgement)} |"
        )
    return "\n".join(lines)


def totals(results: list[Result]) -> str:
    """How many are wrong, each way; as Markdown."""
    lines = ["| | wrong | of |", "|---|--:|--:|"]
    for is_idle, name in (
        (False, "in use, and would be suspended"),
        (True, "idle, and would be kept"),
    ):
        mine = [
            one.judgement
            for one in results
            if one.judgement and one.situation.is_idle is is_idle
        ]
        wrong = sum(judgement.idle is not is_idle for judgement in mine)
        lines.append(f"| {name} | {wrong} | {len(mine)} |")
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
