"""The timer that reads the store: what its unit runs finds damage, and fails then."""

import configparser
import os
import shlex
import sys
from pathlib import Path

import pytest

from tests.support.ran import ran

FOLDER = Path(__file__).parents[2] / "etc" / "systemd"
UNIT = FOLDER / "jupyterhub-gpu-reclaim-verify.service"


def unit(path: Path) -> configparser.RawConfigParser:
    read = configparser.RawConfigParser(strict=False)
    read.optionxform = str  # type: ignore[method-assign,assignment]
    read.read(path)
    return read


@pytest.mark.parametrize("damaged", [False, True])
def test_unit_reads_the_store_and_fails_where_it_is_damaged(store, damaged):
    if damaged:
        pack = next((store.root / "packs" / "bob-1").glob("0*"))
        store.damage(f"packs/bob-1/{pack.name}")
    options = " ".join(store.settings())
    line = unit(UNIT)["Service"]["ExecStart"].replace("$VERIFY_OPTIONS", options)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    done = ran(shlex.split(line), env=environment)
    assert done.returncode == int(damaged), done.stderr
    assert ("bob-1" in done.stdout) == damaged


def test_timer_starts_that_unit_and_an_alert_names_it():
    timer = unit(UNIT.with_suffix(".timer"))
    assert "Unit" not in timer["Timer"]  # it is the one of the same name
    assert timer["Timer"]["OnCalendar"].startswith("Sun ")
    alerts = (FOLDER.parent / "prometheus" / "alerts.yml").read_text()
    assert f'name="{UNIT.name}", state="failed"' in alerts
