"""Names, paths, reasons and error bodies of strangers, in the log of our programs."""

import io
import logging
import sys
from types import SimpleNamespace

import pytest

from jupyterhub_gpu_reclaim.common import logs
from jupyterhub_gpu_reclaim.service.web.site import log_request

FORGED = "2026-11-22T10:00:00.000Z I jupyterhub_gpu_reclaim.service: root did it"
HOSTILE = [
    f"eve\nTraceback \n{FORGED}",
    f"eve\nTraceback (most recent call last):\n{FORGED}\x1b[2J",
    f"eve\r{FORGED}",
    f"eve\x9b2J\x85{FORGED}",
    f"eve\u2028{FORGED}\u2029",
    "eve\u202egnp.exe\u2066\u200f",
    "eve\x00\x07\x7f",
]


@pytest.fixture
def log(monkeypatch):
    stream = io.StringIO()
    former = logging.lastResort
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        logs.set_up("DEBUG")
    yield stream
    logs.set_up("INFO")
    logging.getLogger("jupyterhub_gpu_reclaim").propagate = True
    logging.lastResort = former


def check(lines: list[str], *, first: int) -> None:
    """That only so many lines begin as lines of ours, and nothing is obeyed."""
    assert sum(not line.startswith("    ") for line in lines) == first
    text = "".join(lines)
    assert not [char for char in text if logs.shown(char) != char]


@pytest.mark.parametrize("text", HOSTILE)
def test_log_line_with_hostile_text_stays_one_line(log, text):
    logger = logging.getLogger("jupyterhub_gpu_reclaim.test")
    logger.info("%s: suspended, %s", text, text)
    check(log.getvalue().split("\n")[:-1], first=1)
    assert log.getvalue().encode("utf-8")


def test_name_that_is_no_text_is_shown_and_can_be_written():
    """Not by a logger: pytest would keep the record, and xdist cannot send it."""
    words = ("jupyterhub_gpu_reclaim.test", logging.INFO, __file__, 1)
    record = logging.LogRecord(*words, "%s: suspended", ("eve\udc80",), None)
    line = logs.OneLineFormatter().format(record)
    assert line.encode("utf-8").isascii()


@pytest.mark.parametrize("text", HOSTILE)
def test_traceback_of_an_error_with_hostile_text_stays_indented(log, text):
    logger = logging.getLogger("jupyterhub_gpu_reclaim.test")
    try:
        raise ValueError(text)
    except ValueError:
        logger.exception("%s failed", text, stack_info=True)
    lines = log.getvalue().split("\n")[:-1]
    check(lines, first=1)
    assert any("    Traceback" in line for line in lines)


@pytest.mark.parametrize("text", HOSTILE)
def test_path_of_a_request_stays_one_line(log, text):
    request = SimpleNamespace(method="GET", path=text, request_time=lambda: 0.1)
    log_request(SimpleNamespace(get_status=lambda: 500, request=request))
    check(log.getvalue().split("\n")[:-1], first=1)


@pytest.mark.parametrize("text", HOSTILE)
def test_other_libraries_lines_are_written_alike(log, text):
    record = logging.makeLogRecord({"msg": text, "levelno": 40, "name": "asyncio"})
    logging.lastResort.handle(record)
    check(log.getvalue().split("\n")[:-1], first=1)


def test_message_that_comes_ten_thousand_times_is_counted(log):
    logger = logging.getLogger("jupyterhub_gpu_reclaim.test")
    for number in range(10_000):
        logger.warning("accept failed: %d", number)
    assert len(log.getvalue().splitlines()) <= 400
    throttle = logs.Throttle(most=1, within=5.0)
    kept = []
    for at in (0.0, 1.0, 2.0, 6.0):
        record = logging.makeLogRecord({"msg": "x %d", "args": (1,), "created": at})
        if throttle.filter(record):
            kept.append(record.getMessage())
    assert kept == ["x 1", "x 1 (2 more like it were left out)"]


def test_line_is_no_longer_than_people_read(log):
    """What a session has, thousands of files or sockets, may stand in one message."""
    logger = logging.getLogger("jupyterhub_gpu_reclaim.test")
    logger.warning("begin %s end", "\x1b" * 2_000_000)
    try:
        raise ValueError("x" * 2_000_000)
    except ValueError:
        logger.exception("unexpected")
    text = log.getvalue()
    assert len(text) < 200_000
    assert "begin" in text
    assert " end\n" in text
    assert "left out" in text
