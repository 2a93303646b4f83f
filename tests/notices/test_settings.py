"""Settings of notices that make no sense are refused at the start, and leak nothing."""

from __future__ import annotations

import pytest
from traitlets import TraitError

from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.service.notices.settings import Notices
from tests.support.manual_clock import ManualClock


def channels(**settings):
    found = Notices(**settings).channels(ManualClock())
    for channel in found:
        channel.close()
    return [channel.name for channel in found]


def test_nobody_is_told_unless_it_is_configured(tmp_path):
    assert channels() == []
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef\n")
    hook = {"webhook_url": "https://x.org/h", "webhook_secret_file": str(secret)}
    assert channels(**hook) == ["webhook"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("webhook_url", "ftp://x/secret"),
        ("webhook_url", "https:///secret"),
        ("webhook_url", "https://[secret"),
        ("webhook_url", "https://x/a secret"),
        ("webhook_url", "https://x/\nsecret"),
        ("kinds", ["everything"]),
    ],
)
def test_setting_that_makes_no_sense_is_refused(name, value):
    with pytest.raises(TraitError) as caught:
        Notices(**{name: value})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (
            {"webhook_url": "http://x/", "webhook_secret_file": "/no/file"},
            "cannot be read",
        ),
        ({"webhook_url": "http://x/", "webhook_secret_file": "short"}, "too short"),
        ({"webhook_url": "http://x/", "webhook_secret_file": "empty"}, "is empty"),
        ({"webhook_url": "http://x/", "webhook_secret_file": "bytes"}, "it is no text"),
    ],
)
def test_what_is_missing_is_said_at_the_start(settings, why, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short").write_text("1234")
    (tmp_path / "empty").write_text(" \n")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(Refused) as caught:
        channels(**settings)
    assert why in caught.value.message
    assert "1234" not in caught.value.message
