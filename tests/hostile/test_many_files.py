"""A user who opens more files than can be looked at keeps no processor busy.

A suspend looks at each open file of each program several times.
"""

import time

from tests.node.conftest import agent, folder, jupyter, places

__all__ = ["agent", "folder", "jupyter", "places"]

#: Some 90,000; with a limit of its user's own, a hundred million are no more work.
MANY = """
import os, resource, time
limit = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 15000)
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
try:
    while True:
        os.dup(0)
except OSError:
    pass
for _ in range(90_000 // limit):
    if not os.fork():
        time.sleep(1000)
"""


def test_session_with_too_many_open_files_is_refused_before_they_are_looked_at(
    agent, jupyter
):
    server = jupyter()
    kernel = server.start_kernel()
    server.run(kernel, MANY)
    begun = time.monotonic()
    failure = agent.capture(server.place, "cp")[-1]["failure"]
    assert failure["code"] == "process_unsupported"
    assert "more than 65536 files open" in failure["message"]
    assert time.monotonic() - begun < 5
