"""Every release must open what format 1 is."""

import shutil
from pathlib import Path

from jupyterhub_gpu_reclaim.common.models import SessionKey, Step
from jupyterhub_gpu_reclaim.store.backends.folder import FolderBackend
from jupyterhub_gpu_reclaim.store.repository import Repository
from tests.store.doubles import KEYS
from tests.store.samples import make

SAMPLES = Path(__file__).parent / "samples"


def test_frozen_sample_of_format_1_is_opened_and_built_upon(root, clock):
    shutil.copytree(SAMPLES / "format-1", root)
    repository = Repository(FolderBackend(root), clock=clock, keys=KEYS)
    first, second = repository.list()
    assert first.key == SessionKey("ada", "lab")
    assert first.steps == [Step(step="dump", title="Saving the memory")]
    checkpoint = repository.open("sample-1")
    assert checkpoint.names() == ["zero", "random", "text", "empty"]
    assert checkpoint.read("zero") == make.ZERO
    assert checkpoint.read("random") == make.RANDOM
    assert checkpoint.read("text") == make.TEXT
    assert checkpoint.read("empty") == b""
    assert second.deduplicated_bytes == 4 * 4096
    repository.delete("sample-1")
    assert repository.open("sample-2").read("criu/pages-1.img") == make.CHANGED
    writer = repository.begin(id="new", key=first.key, incarnation="i2", generation=3)
    writer.add("criu/pages-1.img", make.CHANGED)
    assert writer.commit().deduplicated_bytes >= 4096
