"""Bytes that are no value of ours are a sentence, whatever is wrong with them."""

from urllib.parse import unquote

import pytest

from jupyterhub_gpu_reclaim.common import codec
from jupyterhub_gpu_reclaim.common.errors import BadRequest
from jupyterhub_gpu_reclaim.common.models import SessionKey


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
        codec.decode(data, SessionKey)


def test_path_of_a_key_is_its_own_and_leads_back():
    names = ["", "-", "--", "---", "-a", "a-", "a b", "%2d", "train"]
    paths = [SessionKey("ada", name).path for name in names]
    assert paths[0] == "ada/-"
    assert paths[-1] == "ada/train"
    assert len(set(paths)) == len(names)
    for name, path in zip(names, paths, strict=True):
        user, server = map(unquote, path.split("/"))
        assert SessionKey.of_path(user, server) == SessionKey("ada", name)
