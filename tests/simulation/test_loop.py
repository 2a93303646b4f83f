"""Virtual time, programs that are killed, and code that blocks."""

import asyncio

import pytest

from simulation.loop import Killed, Program, Stuck, pause, run, spawn


def test_sleep_takes_virtual_time_alone():
    async def work():
        await asyncio.sleep(86400.0)
        return asyncio.get_running_loop().time()

    assert run(work()) == 86400.0


def test_blocking_code_lets_others_run_meanwhile():
    said = []

    def blocks():
        pause(10.0)
        said.append("b")

    async def work():
        blocked = asyncio.create_task(asyncio.to_thread(blocks))
        await asyncio.sleep(5.0)
        said.append("a")
        await blocked

    run(work())
    assert said == ["a", "b"]


def test_killed_program_runs_no_finally():
    said = []

    async def victim():
        try:
            await asyncio.sleep(60.0)
        finally:
            said.append("finally")

    async def work():
        program = Program("victim")
        spawn(program, victim())
        await asyncio.sleep(1.0)
        program.kill()
        await asyncio.sleep(120.0)
        return list(said)

    assert run(work()) == []


def test_program_is_killed_at_its_nth_write():
    program = Program("writer")
    program.writes_left = 3
    program.effect()
    program.effect()
    with pytest.raises(Killed):
        program.effect()
    assert not program.alive


def test_nothing_to_wait_for_is_an_error():
    async def work():
        await asyncio.Event().wait()

    with pytest.raises(Stuck):
        run(work())


def test_what_ends_with_the_loop_makes_no_real_one(monkeypatch):
    made = []
    monkeypatch.setattr(
        asyncio.DefaultEventLoopPolicy, "new_event_loop", lambda self: made.append(1)
    )
    # As in a process that has had no event loop yet.
    monkeypatch.setattr(asyncio.get_event_loop_policy()._local, "_set_called", False)

    async def victim():
        try:
            await asyncio.sleep(60.0)
        finally:
            await asyncio.gather()

    async def work():
        program = Program("victim")
        spawn(program, victim())
        await asyncio.sleep(1.0)
        program.kill()

    run(work())
    assert made == []
