"""A Hub whose packages are not of our choice says what it lacks."""

import sys

import pytest

from jupyterhub_gpu_reclaim.hub.needs import check, lacking
from tests.support.ran import ran


def test_nothing_is_missing_here():
    check("docker")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("traitlets>=5", []),
        ("traitlets>=99", ["traitlets>=99 (it has "]),
        ("traitlets<5", ["traitlets<5 (it has "]),
        ("no-such-package>=1", ["no-such-package>=1"]),
        ("no-such-package>=1; extra == 'kubernetes'", ["no-such-package>=1"]),
        ("no-such-package>=1; extra == 'agent'", []),
        ("no-such-package>=1; python_version < '3'", []),
    ],
)
def test_what_is_missing_is_named_with_what_is_there(line, told):
    found = lacking([line], "kubernetes")
    assert len(found) == len(told)
    assert all(each.startswith(words) for each, words in zip(found, told, strict=True))


def test_a_package_that_is_not_made_for_this_python_is_named_before_it_is_needed():
    code = """
import sys
sys.modules["msgspec"] = None
from jupyterhub_gpu_reclaim.hub.needs import check
check("docker")
"""
    done = ran([sys.executable, "-c", code])
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert f"which lacks msgspec for Python {python}. Take another" in done.stderr
