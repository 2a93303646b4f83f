"""Huge pages for all, for a while: put back by the last user, and after a crash."""

import threading

import pytest

from jupyterhub_gpu_reclaim.linux import huge_pages
from jupyterhub_gpu_reclaim.linux.huge_pages import RaisedPages, put_back


class KernelFile:
    """The kernel's file, which names all modes and brackets the one in force."""

    MODES = ("always", "madvise", "never")

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.read_only = False

    def read_text(self, encoding: str) -> str:
        names = (f"[{one}]" if one == self.mode else one for one in self.MODES)
        return " ".join(names) + "\n"

    def write_text(self, text: str, encoding: str) -> None:
        if self.read_only:
            raise OSError(30, "Read-only file system")
        assert text in self.MODES
        self.mode = text


@pytest.fixture
def kernel(monkeypatch):
    file = KernelFile("madvise")
    monkeypatch.setattr(huge_pages, "_SETTING", file)
    return file


@pytest.fixture
def memo(tmp_path):
    return tmp_path / "huge-pages"


def test_the_last_of_several_puts_them_back(kernel, memo):
    pages = RaisedPages(memo)
    both, go_on = threading.Barrier(3), threading.Event()

    def move() -> None:
        with pages.held():
            both.wait(10)
            go_on.wait(10)

    threads = [threading.Thread(target=move) for _ in range(2)]
    for one in threads:
        one.start()
    both.wait(10)
    with pages.held():
        assert kernel.mode == "always"
    assert kernel.mode == "always"
    assert memo.exists()
    go_on.set()
    for one in threads:
        one.join(10)
    assert kernel.mode == "madvise"
    assert not memo.exists()


@pytest.mark.parametrize("mode", ["madvise", "never"])
def test_what_a_killed_agent_has_raised_is_put_back_by_the_next(kernel, memo, mode):
    kernel.mode = mode
    with pytest.MonkeyPatch.context() as killed:
        killed.setattr(huge_pages, "put_back", lambda memo: None)
        with RaisedPages(memo).held():
            pass
    assert kernel.mode == "always"
    put_back(memo)
    assert kernel.mode == mode
    assert not memo.exists()
    put_back(memo)
    assert kernel.mode == mode


def test_what_somebody_has_chosen_meanwhile_stays(kernel, memo):
    with RaisedPages(memo).held():
        kernel.mode = "never"
    assert kernel.mode == "never"
    assert not memo.exists()


@pytest.mark.parametrize(
    "text", ["another-boot madvise", "", "\0", "{boot} sometimes", "{boot} always"]
)
def test_a_memo_of_another_boot_or_that_is_damaged_changes_nothing(kernel, memo, text):
    kernel.mode = "always"
    memo.write_text(text.replace("{boot}", huge_pages._boot()))
    put_back(memo)
    assert kernel.mode == "always"
    assert not memo.exists()


@pytest.mark.parametrize("mode", ["always", ""])
def test_where_nothing_is_to_be_raised_nothing_is_written(kernel, memo, mode):
    kernel.mode = mode
    with RaisedPages(memo).held():
        assert not memo.exists()
    assert kernel.mode == mode


def test_where_it_cannot_be_changed_the_work_goes_on_and_the_log_says_so_once(
    kernel, memo, caplog
):
    kernel.read_only = True
    pages = RaisedPages(memo)
    for _ in range(3):
        with pages.held():
            assert kernel.mode == "madvise"
    assert [r.getMessage() for r in caplog.records].count(
        "- huge pages stay at madvise: [Errno 30] Read-only file system"
    ) == 1
    assert not memo.exists()
