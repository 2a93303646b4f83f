"""What another release has kept is refused by one sentence, and left as it is."""

import pytest

from jupyterhub_gpu_reclaim.common import codec, deletion_orders
from jupyterhub_gpu_reclaim.common.errors import BadRequest
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.node.operations.checkpoint_files import CheckpointContents


class Checkpoint:
    def read(self, name):
        return b'{"version": 2}'


def test_other_version_is_refused_before_its_fields_are_looked_at():
    with pytest.raises(BadRequest) as caught:
        codec.decode_kept(b'{"version": 2, "user": 5}', SessionKey, "The note")
    assert caught.value.reason is Reason.OTHER_VERSION
    assert caught.value.message == (
        "The note has version 2; this release reads version 1 alone."
    )


def test_checkpoint_with_a_description_of_another_version_does_not_come_back():
    with pytest.raises(BadRequest, match="The checkpoint has version 2") as caught:
        CheckpointContents(Checkpoint())
    assert caught.value.reason is Reason.OTHER_VERSION


def test_order_to_delete_of_another_version_deletes_nothing(tmp_path, caplog):
    order = deletion_orders.Deletion(user="ada", version=2)
    deletion_orders.write(tmp_path, order)
    assert list(deletion_orders.pending(tmp_path)) == []
    assert "The order has version 2" in caplog.text
