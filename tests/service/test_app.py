"""The program by itself: what keeps it from working is one sentence to every caller."""

import contextlib

import pytest
import requests

from tests.support.service_program import SPAWNER_TOKEN, ServiceProgram, preloaded


@pytest.fixture(scope="module")
def programs():
    return preloaded()


@pytest.fixture
def run(tmp_path, programs):
    """Runs the program until it gives up; what it answers, and what it has logged."""

    def started(*arguments: str, **changes: str) -> tuple[str, str]:
        token = f"--ReclaimService.agent_token_file={tmp_path / 'agent.token'}"
        program = ServiceProgram(programs, tmp_path, token, *arguments, **changes)
        heard = ""
        while program.process.is_alive():
            with contextlib.suppress(requests.RequestException):
                answer = requests.get(f"{program.url}readyz", timeout=60)
                assert answer.status_code == 503
                if answer.json()["code"] == "service_broken":
                    heard = answer.json()["message"]
            program.process.join(0.1)
        assert program.process.exitcode == 1
        program.process.close()
        text = program.told()
        assert "Traceback" not in text
        for secret in ("t" * 32, SPAWNER_TOKEN):
            assert secret not in text + heard
        return heard, text

    return started


def test_program_outside_a_hub_says_what_is_missing(run):
    heard, log = run(JUPYTERHUB_SERVICE_URL="")
    assert heard == ""
    assert "JUPYTERHUB_SERVICE_URL must be set" in log


@pytest.mark.parametrize(
    "argument",
    [
        "--IdlePolicy.idle_after=-5",
        "--ReclaimService.sample_interval=often",
        "--ReclaimService.captures=0",
    ],
)
def test_program_with_a_setting_out_of_its_bounds_says_which(run, argument):
    heard, _ = run(argument)
    assert argument.partition("=")[0].rpartition(".")[2] in heard


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nonsense", "journal_url is no address"),
        ("nosuchdb://x", "in PostgreSQL, not in nosuchdb"),
        ("sqlite:////proc/x/y", "the log has the details"),
    ],
)
def test_program_with_a_journal_that_is_none_says_so(run, url, said):
    heard, log = run(f"--ReclaimService.journal_url={url}")
    assert said in heard
    assert said in log
    if url.startswith("sqlite"):
        assert "unable to open" in log


def test_program_whose_folder_is_wrong_says_so(run, tmp_path):
    (tmp_path / "state" / "cookie_secret").mkdir(parents=True)
    heard, _ = run()
    assert f"The state folder {tmp_path / 'state'} cannot be used" in heard
