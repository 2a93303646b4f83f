"""A second chance ends all that it has begun: a gap in pytest-rerunfailures, closed.

Loaded by ``tests/conftest.py``. When a test failed, the plugin (16.7) puts finalizers
of its module and the session aside, and puts them back after the next try, in place
of those that this one has added. So a module's fixture that comes after one that failed
at first would never end: a Hub runs on, and a browser's event loop stays the thread's,
in which no asynchronous test can run any more.
"""

import pytest
import pytest_rerunfailures


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Add what this try has begun to what the plugin puts back."""
    # Not public: where it goes, tests/test_reruns.py tells whether it is still needed.
    aside = getattr(pytest_rerunfailures, "suspended_finalizers", {})
    for node, (finalizers, _) in item.session._setupstate.stack.items():
        if node in aside:
            earlier = aside[node][0]
            earlier += [one for one in finalizers if one not in earlier]
