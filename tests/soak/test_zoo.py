"""Every animal tells the same twice, something else after its work, and goes on."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pytest

from soak.zoo import ANIMALS, GPU_ANIMALS, Animal
from tests.support.long_stories import but

ROOT = Path(__file__).parents[2]
FAKE = ROOT / "tests" / "support" / "fake_cuda" / "cuda.c"

#: As in a kernel, whose loop runs while no cell does.
LIFE = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
from soak.zoo import keeper

async def main():
    keeper.begin(sys.argv[2])
    await asyncio.sleep(0.3)
    keeper.tell()
    await asyncio.sleep(0.3)
    keeper.work()
    keeper.tell()
    keeper.end()

asyncio.run(main())
import os
os._exit(0)
"""


def live(animal: Animal, home: Path, env: dict[str, str]) -> list[dict]:
    said = home / "said"
    with said.open("w") as output:
        alive = subprocess.Popen(
            [sys.executable, "-c", LIFE, str(ROOT), animal.home],
            env={**os.environ, "HOME": str(home), **env},
            cwd=home,
            stdout=output,
            start_new_session=True,
        )
    try:
        alive.wait(120)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(alive.pid, signal.SIGKILL)  # its children, too
        alive.wait()
    lines = [line for line in said.read_text().splitlines() if line.startswith("{")]
    assert len(lines) == 4, said.read_text()
    return [json.loads(line) for line in lines]


def check(told: list[dict]) -> None:
    first, same, changed, again = told
    assert first["digest"] == same["digest"]
    assert changed["digest"] == again["digest"] != first["digest"]
    assert len({one["pid"] for one in told}) == 1
    grown = [one["grown"] for one in told]
    assert grown == sorted(grown)


ALIKE = {animal.home: animal for animal in ANIMALS}
#: They load large packages, or hold a gigabyte; a soak has them all.
HEAVY = {"memory:Frame", "memory:Model", "memory:Gigabyte", "display:Figure"}
HEAVY |= {"gpu:TwoProcesses", "gpu:DeviceMemory"}


def each(animals: Collection[Animal]) -> list[object]:
    light = [animal for animal in animals if animal.home not in HEAVY]
    return but(animals, *light)


@pytest.mark.parametrize("animal", each(ALIKE.values()), ids=ALIKE)
def test_animal_tells_the_same_until_it_works(animal: Animal, tmp_path: Path) -> None:
    if not animal.here():
        pytest.skip(f"needs {animal.needs} {animal.program}")
    if animal.name == "widgets":
        pytest.skip("lives in a kernel only: its page is connected there")
    check(live(animal, tmp_path, {}))


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler for the false driver")
    folder = tmp_path_factory.mktemp("cuda")
    target = folder / "libcuda.so.1"
    flags = ["-shared", "-fPIC", "-Wall", "-Werror", "-o", str(target), str(FAKE)]
    subprocess.run([compiler, *flags], check=True)
    return {"LD_LIBRARY_PATH": str(folder), "FAKE_CUDA_DIR": str(folder)}


@pytest.mark.parametrize("animal", each(GPU_ANIMALS), ids=lambda animal: animal.name)
def test_animal_with_a_card_tells_the_same_until_it_works(
    animal: Animal, tmp_path: Path, driver: dict[str, str]
) -> None:
    check(live(animal, tmp_path, driver))
