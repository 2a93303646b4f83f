"""The agent's program where only the Hub's side is installed."""

import sys

from tests.support.ran import ran

WITHOUT = """
import sys
sys.modules["lz4"] = None  # what an installation without the agent's extra lacks
from jupyterhub_gpu_reclaim.node.__main__ import main
main()
"""


def run(*arguments):
    command = [sys.executable, *arguments]
    return ran(command, timeout=60)


def test_program_without_the_agents_packages_says_what_to_install():
    ran = run("-c", WITHOUT)
    assert ran.returncode == 1
    assert 'pip install "jupyterhub-gpu-reclaim[agent]"' in ran.stderr
    assert "Traceback" not in ran.stderr


def test_program_says_its_version():
    ran = run("-m", "jupyterhub_gpu_reclaim.node", "--version")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip()
