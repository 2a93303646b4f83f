"""Programs of a save point never write into files that have gone on since."""

import shutil
import sqlite3
import sys
import textwrap
from pathlib import Path

import pytest

from tests.node.test_crash import at
from tests.support.agent import wait_for

pytestmark = pytest.mark.shares_an_agent

#: Runs what it is told by files, one after the other.
PROGRAM = """
import mmap, os, sqlite3, sys, time
names = {"mmap": mmap, "os": os, "sqlite3": sqlite3}
number = 0
while True:
    path = os.path.join(sys.argv[1], f"step-{number}")
    if os.path.exists(path):
        with open(path) as file:
            words = file.read()
        exec(words, names)
        number += 1
        os.unlink(path)
    time.sleep(0.01)
"""


class Session:
    """A session that runs what it is told, in a folder of its own."""

    def __init__(self, agent, places, folder: Path) -> None:
        self.agent = agent
        self.places = places
        self.files = folder
        self._steps = folder / "steps"
        self._steps.mkdir(parents=True)
        self._number = 0
        self.place = places("start", sys.executable, "-c", PROGRAM, str(self._steps))

    def __call__(self, code: str) -> None:
        step = self._steps / f"step-{self._number}"
        words = f"os.chdir({str(self.files)!r})\n{textwrap.dedent(code)}"
        new = step.with_name("new")
        new.write_text(words)
        new.rename(step)
        wait_for(lambda: not step.exists())
        self._number += 1

    def save(self, name: str) -> dict:
        saved = self.agent.save(self.place, name)
        assert saved[-1].get("checkpoint"), saved[-1]
        self._saved = self._number
        return saved[-1]["checkpoint"]

    def go_back(self, name: str, **more) -> dict:
        self.place.kill()
        self.place = self.places("hold")
        self._number = self._saved
        return self.agent.restore(self.place, name, **more)[-1]

    def contents(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.files)): path.read_bytes()
            for path in sorted(self.files.rglob("*"))
            if path.is_file()
        }


@pytest.fixture
def session(agent, places, folder, request):
    return Session(agent, places, folder / request.node.name.replace("/", "-")[-60:])


DATABASE = """
db = sqlite3.connect("data.sqlite", isolation_level=None)
db.execute("pragma journal_mode={mode}")
db.execute("pragma cache_size=10")
db.execute("create table t (n, text)")
db.execute("begin")
db.executemany("insert into t values (?, ?)", [(n, "x" * 99) for n in range(2000)])
db.execute("commit")
db.execute("begin immediate")
db.executemany("insert into t values (?, ?)", [(n, "y" * 99) for n in range(2000)])
"""
#: What a program has open, and what it does with that behind the save point.
STORIES = {
    "wal": (
        DATABASE.format(mode="wal"),
        """
        db.execute("commit")
        other = sqlite3.connect("data.sqlite")
        other.executemany("insert into t values (?, 'z')", [(n,) for n in range(3000)])
        other.commit()
        other.close()
        """,
    ),
    "delete": (
        DATABASE.format(mode="delete"),
        """
        db.execute("commit")
        db.execute("begin")
        db.executemany("insert into t values (?, 'z')", [(n,) for n in range(3000)])
        db.execute("commit")
        """,
    ),
    "log": (
        "log = open('run.log', 'w'); log.write('one two '); log.flush()",
        "log.write('three four five'); log.flush()",
    ),
    "mapped": (
        """
        file = open("mapped", "w+b"); file.truncate(1 << 20)
        shared = mmap.mmap(file.fileno(), 0)
        shared[:4] = b"then"
        """,
        "shared[:3] = b'now'",
    ),
}


#: What a program does when it is back, where that is another thing.
ENDS = {
    "wal": "db.execute('commit')",
    # SQLite looks whether it is still its file when it begins the next one.
    "delete": "db.execute('commit'); db.execute('begin immediate'); db.execute('end')",
    "mapped": "shared[4:5] = b'X'",
}
#: Whatever the agent remembers of it.
AGENTS = ["the same", "restarted", "another's"]


@pytest.mark.parametrize(
    ("story", "agent_is"),
    [
        pytest.param(story, agent_is, marks=[pytest.mark.long] if number else [])
        for story in STORIES
        for number, agent_is in enumerate(AGENTS)
        if not number or story in {"wal", "log"}
    ],
)
def test_what_a_session_wrote_behind_its_save_point_is_kept(
    agent, session, story, agent_is
):
    begins, goes_on = STORIES[story]
    session(begins)
    session.save("cp-1")
    session(goes_on)
    if agent_is != "the same":
        agent.kill()
        if agent_is == "another's":
            shutil.rmtree(agent.folder / "state" / "records")
        agent.start()
    session.place.kill()
    newer = session.contents()
    failure = session.go_back("cp-1")["failure"]
    assert failure["code"] == "files_newer", failure
    assert str(session.files) in failure["message"]
    assert session.contents() == newer

    answer = session.go_back("cp-1", put_files_back=True)
    assert answer.get("tree"), answer
    (beside,) = map(Path, answer["tree"]["newer"])
    assert beside.parent == session.files
    assert beside.name.startswith("newer than ")
    for name, data in newer.items():
        kept = beside / name
        assert data in {
            one.read_bytes() for one in (kept, session.files / name) if one.exists()
        }
    session(goes_on if story == "log" else ENDS.get(story, ""))
    if story == "log":
        text = (session.files / "run.log").read_text()
        assert text == "one two three four five"
    elif story == "mapped":
        assert (session.files / "mapped").read_bytes()[:5] == b"thenX"
        assert (beside / "mapped").read_bytes()[:4] == b"nown"
    else:
        assert rows(session.files) == 4000
        assert rows(beside) == 7000


def rows(folder: Path) -> int:
    """How many there are in a database that is whole."""
    db = sqlite3.connect(folder / "data.sqlite")
    assert db.execute("pragma integrity_check").fetchone() == ("ok",)
    (count,) = db.execute("select count(*) from t").fetchone()
    db.close()
    return count


def test_agent_killed_while_files_are_put_back(agent, session):
    session(STORIES["log"][0])
    session.save("cp-1")
    session(STORIES["log"][1])
    session.place.kill()
    newer = session.contents()["run.log"]
    session.place = session.places("hold")
    begun = at("files-back", "begun")
    agent.restore(session.place, "cp-1", until=begun, put_files_back=True)
    agent.kill()
    assert newer in session.contents().values()
    agent.start()
    answer = session.go_back("cp-1", put_files_back=True)
    assert answer.get("tree"), answer
    session(STORIES["log"][1])
    assert (session.files / "run.log").read_text() == "one two three four five"
    assert list(session.contents().values()).count(newer) == 2


def test_what_is_too_large_to_be_kept_is_named_and_refused(session):
    session("log = open('large', 'w'); log.write('x' * (300 << 20)); log.flush()")
    info = session.save("cp-1")
    assert info["not_kept"] == str(session.files / "large")
    session("log.write('y'); log.flush()")
    for put_files_back in (False, True):
        failure = session.go_back("cp-1", put_files_back=put_files_back)["failure"]
        assert failure["code"] == "file_changed", failure
        assert ", not kept)" in failure["message"]
    assert (session.files / "large").stat().st_size == (300 << 20) + 1


@pytest.mark.parametrize("story", STORIES)
def test_what_has_not_changed_comes_back_and_writes_on(session, story):
    begins, goes_on = STORIES[story]
    session(begins)
    session.save("cp-1")
    answer = session.go_back("cp-1")
    assert answer.get("tree"), answer
    session(goes_on)
    if story == "log":
        text = (session.files / "run.log").read_text()
        assert text == "one two three four five"


def test_log_that_was_only_appended_to_stays_as_it_is(session):
    session("log = open('run.log', 'a'); log.write('one '); log.flush()")
    session.save("cp-1")
    session("log.write('two '); log.flush()")
    answer = session.go_back("cp-1")
    assert answer.get("tree"), answer
    session("log.write('three'); log.flush()")
    assert (session.files / "run.log").read_text() == "one two three"


def test_database_of_another_program_is_kept(session):
    session(DATABASE.format(mode="wal") + "db.execute('commit')")
    session.save("cp-1")
    with sqlite3.connect(session.files / "data.sqlite") as other:
        other.execute("insert into t values (1, 'of another')")
    other.close()
    failure = session.go_back("cp-1")["failure"]
    assert failure["code"] == "files_newer", failure


def test_database_between_transactions_is_read_again(session):
    """As IPython's history: each of its transactions begins with a look at the file."""
    session(DATABASE.format(mode="delete") + "db.execute('commit')")
    session.save("cp-1")
    session("db.execute('insert into t values (1, 2)')")
    answer = session.go_back("cp-1")
    assert answer.get("tree"), answer
    session("db.execute('insert into t values (3, 4)')")
    with sqlite3.connect(session.files / "data.sqlite") as db:
        assert db.execute("select count(*) from t").fetchone() == (4002,)
    db.close()
