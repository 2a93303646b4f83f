"""An object store that fails, is far or badly described; and no secret anywhere."""

import itertools
import json
import logging
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from jupyterhub_gpu_reclaim.common.errors import BadRequest, StoreError
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.backend import ObjectMissing, Unavailable
from jupyterhub_gpu_reclaim.store.backends.address import open_backend, spec_of
from tests.support.object_store import LOGIN, faulty

BIG = os.urandom(11 * 1024 * 1024 + 3)


def spec(s3, bucket, **more):
    given = {"options": s3.options, "options_file": str(s3.options_file)}
    return spec_of(f"s3://{bucket}/p", **{**given, "patience": 5.0, **more})


def put(backend, name, data):
    writer = backend.create(name)
    writer.write(data)
    writer.finish()
    writer.abandon()


def test_object_that_is_abandoned_leaves_no_parts_in_the_bucket(s3, bucket):
    backend = open_backend(spec(s3, bucket))
    writer = backend.create("packs/a/0")
    writer.write(BIG)
    writer.abandon()
    assert backend.list("packs/") == []
    assert s3.unfinished(bucket) == []
    with pytest.raises(StoreError):
        writer.write(BIG)


def test_every_third_request_that_is_refused_or_lost_is_made_good(s3, bucket):
    numbers = itertools.count(1)
    faults = itertools.cycle(["503", "lost"])

    def fault(method, path):
        return next(faults) if next(numbers) % 3 == 0 else ""

    with faulty(s3.endpoint, fault) as endpoint:
        options = {**s3.options, "endpoint": endpoint}
        backend = open_backend(spec(s3, bucket, options=options, patience=30.0))
        put(backend, "packs/a/0", BIG)
        for number in range(4):
            backend.publish(f"manifests/{number}.json", b"%d" % number)
        assert backend.read("packs/a/0", 7, len(BIG)) == BIG[7:]
        assert len(backend.list("manifests/")) == 4
        backend.replace("manifests/0.json", b"new")
        backend.delete("manifests/1.json")
        names = [entry.name for entry in backend.list("manifests/")]
    assert names == [f"manifests/{n}.json" for n in (0, 2, 3)]
    assert next(numbers) > 20
    assert open_backend(spec(s3, bucket)).read("manifests/0.json", 0, 9) == b"new"


def test_publish_whose_answer_is_lost_is_known_for_its_own(s3, bucket):
    lost = iter(["lost"])

    def fault(method, path):
        return next(lost, "") if method == "PUT" else ""

    with faulty(s3.endpoint, fault) as endpoint:
        options = {**s3.options, "endpoint": endpoint}
        backend = open_backend(spec(s3, bucket, options=options))
        backend.publish("manifests/a.json", b"mine")
    assert next(lost, "none") == "none"
    other = open_backend(spec(s3, bucket))
    assert other.read("manifests/a.json", 0, 9) == b"mine"
    with pytest.raises(StoreError, match="stands already"):
        other.publish("manifests/a.json", b"theirs")


def test_upload_that_dies_on_the_way_is_an_error_of_the_writer(s3, bucket):
    def fault(method, path):
        return "503" if "partNumber" in path else ""

    with faulty(s3.endpoint, fault) as endpoint:
        options = {**s3.options, "endpoint": endpoint}
        backend = open_backend(spec(s3, bucket, options=options, patience=0.3))
        with pytest.raises(StoreError) as caught:
            put(backend, "packs/a/0", BIG * 3)
        assert caught.value.reason is Reason.STORE_UNREACHABLE
        # To repeat it would only keep a session waiting that stands still.
        assert not isinstance(caught.value, Unavailable)
    assert open_backend(spec(s3, bucket)).list("packs/") == []


def test_store_that_is_not_there_is_unavailable_and_names_no_secret(s3, bucket, caplog):
    caplog.set_level(logging.DEBUG)
    options = {**s3.options, "endpoint": "http://127.0.0.1:1"}
    backend = open_backend(spec(s3, bucket, options=options, patience=0.3))
    with pytest.raises(Unavailable) as caught:
        backend.length("manifests/a.json")
    told = [str(caught.value), repr(caught.value), repr(backend), caplog.text]
    told += [json.dumps(backend.spec()), repr(caught.value.__cause__)]
    for text in told:
        for secret in LOGIN.values():
            assert secret not in text
    assert "does not answer" in caught.value.message


@pytest.mark.parametrize(
    ("status", "says", "repeated"),
    [
        ("403", "refuses the login", False),
        ("401", "asks for a login", False),
        ("400", "refuses the request", False),
        ("501", "only where none stands", False),
        ("507", "Not enough room", False),
        ("429", "does not answer|has a fault", True),
        ("500", "has a fault", True),
    ],
)
def test_answer_of_the_store_is_told_in_words(s3, bucket, status, says, repeated):
    with faulty(s3.endpoint, lambda method, path: status) as endpoint:
        options = {**s3.options, "endpoint": endpoint}
        backend = open_backend(spec(s3, bucket, options=options, patience=0.1))
        with pytest.raises(StoreError, match=says) as caught:
            backend.length("manifests/a")
    assert isinstance(caught.value, Unavailable) == repeated
    assert "a-very-secret-key" not in str(caught.value)


def test_store_without_any_login_says_so(monkeypatch, bucket):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    options = {
        "region": "us-east-1",
        "web_identity_token_file": "/nowhere/token",
        "role_arn": "arn:aws:iam::1:role/x",
    }
    backend = open_backend(spec_of(f"s3://{bucket}/p", options=options, patience=0.1))
    with pytest.raises(StoreError, match="no login"):
        backend.list("packs/")


def test_bucket_that_is_missing_is_an_error_never_a_missing_object(s3):
    backend = open_backend(spec(s3, "no-such-bucket"))
    for look in (
        lambda: backend.length("manifests/a.json"),
        lambda: backend.read("manifests/a.json", 0, 1),
        lambda: backend.list("manifests/"),
        lambda: backend.publish("manifests/a.json", b"x"),
    ):
        with pytest.raises(StoreError) as caught:
            look()
        assert not isinstance(caught.value, ObjectMissing | Unavailable)
        assert "bucket does not exist" in caught.value.message


def test_full_object_store_is_store_full(s3, bucket):
    def fault(method, path):
        return "507" if method == "PUT" else ""

    with faulty(s3.endpoint, fault) as endpoint:
        options = {**s3.options, "endpoint": endpoint}
        backend = open_backend(spec(s3, bucket, options=options, patience=0.2))
        with pytest.raises(StoreError) as caught:
            backend.publish("manifests/a.json", b"x")
    assert caught.value.reason is Reason.STORE_FULL


@pytest.mark.parametrize(
    ("url", "options", "says"),
    [
        ("ftp://bucket/p", {}, "begins with one of"),
        ("relative/path", {}, "begins with one of"),
        ("s3://key:secret@bucket/p", {}, "login is not part"),
        ("s3://bucket/p?sig=secret", {}, "login is not part"),
        ("s3:///p", {}, "names a bucket"),
        ("s3://bucket/p", {"secret_access_key": "x"}, "is a secret"),
        ("s3://bucket/p", {"AWS_SESSION_TOKEN": "x"}, "is a secret"),
        ("az://box/p", {"account_key": "x"}, "is a secret"),
        ("az://box/p", {"sas_token": "x"}, "is a secret"),
        ("gs://bucket/p", {"bearer_token": "x"}, "is a secret"),
        ("/a/folder", {"region": "x"}, "no store options"),
    ],
)
def test_place_that_makes_no_sense_is_refused_in_words(url, options, says):
    with pytest.raises(BadRequest, match=says) as caught:
        spec_of(url, options=options)
    assert "secret@" not in caught.value.message


def test_option_that_is_not_known_is_refused(s3, bucket):
    backend = open_backend(spec(s3, bucket, options={"nonsense": "1"}))
    with pytest.raises(StoreError, match="not known"):
        backend.list("packs/")


@pytest.mark.parametrize(
    ("content", "mode", "says"),
    [
        (None, 0o600, "cannot be read"),
        ("{}", 0o644, "chmod 600"),
        ("no json", 0o600, "not valid JSON"),
        ('{"a": 1}', 0o600, "object of strings"),
        ("[]", 0o600, "object of strings"),
    ],
)
def test_options_file_that_cannot_be_used_is_refused(tmp_path, content, mode, says):
    path = tmp_path / "login.json"
    if content is not None:
        path.write_text(content)
        path.chmod(mode)
    with pytest.raises(BadRequest, match=says):
        open_backend(spec_of("s3://bucket/p", options_file=str(path)))


def test_azure_and_google_are_opened_by_the_same_code(tmp_path):
    path = tmp_path / "login.json"
    path.write_text(json.dumps({"account_key": "c2VjcmV0"}))
    path.chmod(0o600)
    options = {"account_name": "box", "endpoint": "http://127.0.0.1:1"}
    azure = spec_of("az://box/p", options=options, options_file=str(path), patience=0.1)
    google = spec_of(
        "gs://bucket/p",
        options={"skip_signature": "true", "base_url": "http://127.0.0.1:1"},
        patience=0.1,
    )
    for each in (azure, google):
        with pytest.raises(StoreError) as caught:
            open_backend(each).list("packs/")
        assert "c2VjcmV0" not in str(caught.value)


def test_writers_of_several_threads_hold_bounded_memory(s3, bucket):
    backend = open_backend(spec(s3, bucket))
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda n: put(backend, f"packs/a/{n}", BIG), range(3)))
    assert [e.length for e in backend.list("packs/")] == [len(BIG)] * 3
