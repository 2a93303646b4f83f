"""What the simulated installation does to its accounts."""

import re

import pytest

from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.controlplane import save_points
from simulation.doubles.hub import ServerRow
from simulation.loop import VirtualLoop
from simulation.plan import Plan
from simulation.runner import run_seed
from simulation.world import World

ADA = SessionKey("ada")


@pytest.fixture
def world(tmp_path):
    loop = VirtualLoop()
    yield World(Plan(1, (ADA,)), tmp_path, loop)
    loop.close()


def test_renamed_account_takes_its_server_along_and_gets_its_name_back(world):
    world.database.servers[ADA] = row = ServerRow()
    account = world.database.accounts["ada"]
    assert world.rename(ADA, world.renamed(ADA))
    assert not world.rename(ADA, world.renamed(ADA))
    assert world.database.accounts == {"ada-renamed": account}
    assert world.database.servers == {world.renamed(ADA): row}
    assert world.rename_back()
    assert (world.database.accounts, world.database.servers) == (
        {"ada": account},
        {ADA: row},
    )


def test_agents_write_the_term_of_the_service_that_orders_a_capture():
    """The second service of that run has ordered the third."""
    told = "\n".join(run_seed(47).lines)
    stamps = re.findall(r"is committed as \S+, stamp \((\d+), (\d+)\)", told)
    assert stamps[:3] == [("1", "1"), ("1", "1"), ("2", "2")]


def test_save_points_are_made_in_simulated_runs():
    """A double once lacked what one needs, and no law that is about them could fail."""
    made, real = [], save_points._note_saved

    def note(sessions, row, by, info):
        made.append(info.id)
        real(sessions, row, by, info)

    assert not run_seed(10700000064, ((save_points, "_note_saved", note),)).failed
    assert made
