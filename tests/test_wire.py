"""Bytes that are no value of ours are a sentence, whatever is wrong with them."""

import pytest

from jupyterhub_gpu_reclaim import wire
from jupyterhub_gpu_reclaim.errors import BadRequest
from jupyterhub_gpu_reclaim.models import SessionKey


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b'{"user":1}',
        b'{"user":"\xff"}',
        b"[" * 100_000,
        b'{"user":"\\ud800"}',
    ],
    ids=["empty", "cut", "type", "not UTF-8", "deep", "half a pair"],
)
def test_decode_what_does_not_fit_is_a_bad_request(data):
    with pytest.raises(BadRequest):
        wire.decode(data, SessionKey)
