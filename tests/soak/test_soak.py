"""A short soak with kills passes, and one whose session is another one fails."""

import random
import secrets
from collections.abc import Iterator

import pytest

from soak.ledger import Ledger
from soak.run import STACK, Options, Soak
from soak.zoo import ANIMALS
from tests.support import light_server
from tests.support.stack import Stack

pytestmark = [pytest.mark.timeout(600)]
#: Beside other tests all may take longer; on a free machine nothing waits for it.
PATIENCE = 4.0
#: What a run leaves as it found it, kills or not.
NOTHING_MORE_OF = (
    "processes",
    "inotify instances",
    "namespaces",
    "mounts of this machine",
    "control groups",
    "held ports",
    "manifests of the store",
)
ZOO = {animal.name: animal for animal in ANIMALS}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("soak")
    made = Stack(folder, **STACK, server=light_server.COMMAND, http_timeout=120)
    made.patience = PATIENCE
    with made as stack:
        yield stack


def soak(
    stack: Stack, seed: int, *, kills: float, cycles: int = 4, saves: float = 0.0
) -> Soak:
    options = Options(
        folder=stack.folder,
        animals=(ZOO["threads"], ZOO["sqlite"]),
        cycles=cycles,
        seconds=600,
        seed=seed,
        users=2,
        kills=kills,
        patience=PATIENCE,
        chain=2,
        saves=saves,
    )
    return Soak(options, stack, Ledger(), say=False)


@pytest.mark.long  # minutes: Hubs are killed and come back
@pytest.mark.parametrize("seed", [13, None])
def test_soak_with_kills_brings_every_session_back_and_leaks_nothing(
    stack: Stack, seed: int | None
) -> None:
    seed = seed or secrets.randbelow(10**6)
    one = soak(stack, seed, kills=0.5, saves=0.5)
    one.run()
    assert one.ledger.failures == [], f"seed {seed}"
    assert one.ledger.total + one.ledger.rolled_back.total() >= 4
    before, after = one.ledger.leaks["before"], one.ledger.leaks["after"]
    for name in NOTHING_MORE_OF:
        assert after[name] <= before[name], name


@pytest.mark.long
def test_soak_that_meets_another_value_calls_the_session_lost(stack: Stack) -> None:
    one = soak(stack, secrets.randbelow(10**6), kills=0)
    chain = one.new_chain(ZOO["threads"], random.Random(0))
    chain.begin()
    chain.told[0]["digest"] = "of another session"
    try:
        one.cycle(chain, 1, None)
    finally:
        chain.end()
    (failure,) = one.ledger.failures
    assert (failure.kind, failure.animal) == ("lost", "threads")
    assert "of another session" in failure.reason
