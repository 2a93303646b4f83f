"""Makes the frozen sample of a format; run once per format, never again.

``python -m tests.store.samples.make FOLDER`` writes two generations of one session
under the master key of ``tests/store/doubles.py``.
"""

import random
import sys
from pathlib import Path

from jupyterhub_gpu_reclaim.common.models import SessionKey, Step
from jupyterhub_gpu_reclaim.store.backends.folder import FolderBackend
from jupyterhub_gpu_reclaim.store.repository import Repository
from tests.store.doubles import KEYS
from tests.support.manual_clock import ManualClock

RANDOM = random.Random(1).randbytes(5 * 4096)
TEXT = b"kernel state " * 5000
ZERO = bytes(300_000)
CHANGED = RANDOM[4096:] + TEXT[:100]


def make(root: Path) -> None:
    repository = Repository(FolderBackend(root), clock=ManualClock(), keys=KEYS)
    for generation, contents in enumerate(
        (
            {"zero": ZERO, "random": RANDOM, "text": TEXT, "empty": b""},
            {"criu/pages-1.img": CHANGED},
        ),
        start=1,
    ):
        writer = repository.begin(
            id=f"sample-{generation}",
            key=SessionKey("ada", "lab"),
            incarnation="i1",
            generation=generation,
        )
        for name, data in contents.items():
            writer.add(name, data)
        writer.commit(steps=[Step(step="dump", title="Saving the memory")])


if __name__ == "__main__":
    make(Path(sys.argv[1]))
