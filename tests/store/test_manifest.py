import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyterhub_gpu_reclaim.common.errors import StoreError
from jupyterhub_gpu_reclaim.common.models import CheckpointInfo, SessionKey
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.store.format import crypto, layout, manifest
from jupyterhub_gpu_reclaim.store.format.crypto import Origin
from jupyterhub_gpu_reclaim.store.format.manifest import Body, PackRef
from tests.store.doubles import KEYS

ORIGIN = Origin(id="c1", key=SessionKey("ada"), generation=2, data_key=b"d" * 32)
EARLIER = Origin(id="c0", key=SessionKey("ada"), generation=1, data_key=b"e" * 32)


def body(**changes):
    facts = {
        "info": CheckpointInfo(
            id="c1",
            key=SessionKey("ada"),
            incarnation="i",
            generation=2,
            created=1.5,
            logical_bytes=10,
            stored_bytes=5,
        ),
        "chunk_bytes": 4096,
        "id_key": b"i" * 32,
        "origins": [ORIGIN, EARLIER],
        "packs": [PackRef(0, 0, 100), PackRef(1, 65536, 200)],
        "index": 50,
    }
    return Body(**{**facts, **changes})


DATA = manifest.encode(body(), KEYS)


def refused(data, *reasons, checkpoint="c1", keys=KEYS):
    with pytest.raises(StoreError) as caught:
        manifest.decode(data, checkpoint, keys)
    assert caught.value.reason in (reasons or (Reason.CHECKPOINT_DAMAGED,))
    return caught.value.message


def test_manifest_round_trip_is_equal():
    assert manifest.decode(DATA, "c1", KEYS) == body()
    assert [entry.name for entry in body().objects()] == [
        "packs/c1/00000000",
        "packs/c0/00010000",
        "packs/c1/index",
    ]


def test_manifest_of_another_version_is_refused_by_a_sentence():
    other = DATA[:7] + bytes([2]) + DATA[8:]
    said = refused(other, Reason.OTHER_VERSION)
    assert said == ("The manifest has version 2; this release reads version 1 alone.")


@given(st.binary(max_size=300))
def test_manifest_of_any_bytes_is_damaged(data):
    refused(data)
    refused(crypto.MAGIC + data, Reason.CHECKPOINT_DAMAGED, Reason.KEY_MISSING)


def test_manifest_with_the_body_of_another_is_damaged():
    other = manifest.split(manifest.encode(body(chunk_bytes=8192), KEYS))
    mine = manifest.split(DATA)
    assert len(other.body) == len(mine.body)
    # The same data key twice is a fault that a writer cannot have; another's is not.
    foreign = body(origins=[Origin(**{**dict(_facts(ORIGIN)), "data_key": b"x" * 32})])
    stolen = manifest.split(manifest.encode(foreign, KEYS)).body
    refused(DATA[: -len(mine.body)] + stolen)


def _facts(origin):
    return ((name, getattr(origin, name)) for name in origin.__struct_fields__)


@pytest.mark.parametrize(
    "changes",
    [
        {"origins": []},
        {"origins": [EARLIER]},
        {
            "origins": [
                ORIGIN,
                Origin(id="c0", key=SessionKey("ada", "b"), generation=1, data_key=b""),
            ]
        },
        {
            "origins": [
                ORIGIN,
                Origin(id="../c0", key=SessionKey("ada"), generation=1, data_key=b""),
            ]
        },
        {"packs": [PackRef(2, 0, 1)]},
        {"chunk_bytes": 4097},
        {"chunk_bytes": 0},
    ],
    ids=["none", "not-first", "session", "path", "no-origin", "odd", "zero"],
)
def test_manifest_that_cannot_be_is_damaged(changes):
    # Written by who holds the key, but not by this program.
    sealer = crypto.Sealer(crypto.manifest_key(ORIGIN.data_key, "c1"))

    sealed = sealer.seal(
        0, msgspec.json.encode(body(**changes)), crypto.bound_manifest("c1")
    )
    head = DATA[: -len(manifest.split(DATA).body)]
    refused(head + sealed)


@pytest.mark.parametrize(
    ("name", "id_"),
    [
        ("manifests/c1", "c1"),
        ("packs/c1/00000000", "c1"),
        ("packs/c1/index", "c1"),
        ("writing/c1", "c1"),
        ("tmp/packs!c1!00000000~ab", "c1"),
        ("tmp/manifests!c1~ab", "c1"),
        ("manifests/.c1", None),
        ("packs/c1", None),
        ("other/c1", None),
    ],
)
def test_object_is_known_by_its_name(name, id_):
    assert layout.id_of(name) == id_
