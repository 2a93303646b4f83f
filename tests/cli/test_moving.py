"""Export and import: whole, under another key, and never what is not authentic."""

import base64
import json
import os
import random
import stat
import struct

import pytest

from jupyterhub_gpu_reclaim.store.format.keys import load_keys
from jupyterhub_gpu_reclaim.store.repository import Repository
from jupyterhub_gpu_reclaim.store.transfer.export import import_checkpoint
from simulation.doubles.memory_backend import MemoryBackend
from tests.cli.conftest import SAME, Store
from tests.store.doubles import KEYS
from tests.store_backends.doubles import Died, DiesAt

WORDS = "correct horse battery"


@pytest.fixture
def passphrase(tmp_path):
    path = tmp_path / "passphrase"
    path.write_text(WORDS + "\n")
    return path


@pytest.fixture
def other(tmp_path):
    """Another house: its own store and its own key."""
    folder = tmp_path / "other"
    folder.mkdir()
    return Store(folder)


def put_in(run, file, other, *options):
    return run("import", file, *options, at=other.root, key_file=other.key_file)


def test_export_brings_all_that_a_later_generation_needs(
    run, store, other, passphrase, tmp_path
):
    file = tmp_path / "ada.grx"
    option = f"--passphrase-file={passphrase}"
    code, out, _ = run("export", "ada-2", file, option)
    assert code == 0
    assert "written to" in out
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert WORDS.encode() not in file.read_bytes()
    assert SAME[:4096] not in file.read_bytes()
    code, out, err = put_in(run, file, other, option)
    assert (code, err) == (0, "")
    assert out == "ada-2 of ada/lab is in the store\n"
    assert other.contents("ada-2") == store.contents("ada-2")
    # From now on it is under that store's own key, like all others.
    assert run("verify", at=other.root, key_file=other.key_file)[0] == 0
    assert list((other.root / "writing").iterdir()) == []


def test_export_as_it_is_needs_the_same_key(run, store, other, tmp_path):
    file = tmp_path / "ada.grx"
    assert run("export", "ada-1", file)[0] == 0
    code, _, err = put_in(run, file, other)
    assert code == 1
    assert "first" in err
    assert not other.root.exists() or not list(other.root.rglob("packs/*/*"))
    code, _, _ = put_in(run, file, other, f"--with-key-file={store.key_file}")
    assert code == 0
    assert other.contents("ada-1") == store.contents("ada-1")


def test_wrong_passphrase_is_a_sentence_and_nothing_is_stored(
    run, other, passphrase, tmp_path
):
    file = tmp_path / "ada.grx"
    run("export", "ada-1", file, f"--passphrase-file={passphrase}")
    passphrase.write_text("something else\n")
    code, _, err = put_in(run, file, other, f"--passphrase-file={passphrase}")
    assert code == 1
    assert err == "Error: The passphrase is another one, or the file was changed.\n"
    assert not list(other.root.rglob("packs/*/*"))


def test_short_passphrase_is_refused(run, passphrase, tmp_path):
    passphrase.write_text("short\n")
    code, _, err = run(
        "export", "ada-1", tmp_path / "x", f"--passphrase-file={passphrase}"
    )
    assert code == 1
    assert "at least 8" in err
    assert not (tmp_path / "x").exists()


def test_import_of_what_stands_there_is_refused(run, tmp_path):
    file = tmp_path / "ada.grx"
    run("export", "ada-1", file)
    code, _, err = run("import", file)
    assert code == 1
    assert "There is a checkpoint ada-1 already" in err


def test_import_after_the_first_generation_shares_its_packs(
    run, store, other, tmp_path
):
    one, two = tmp_path / "1.grx", tmp_path / "2.grx"
    run("export", "ada-1", one)
    run("export", "ada-2", two)
    key = f"--with-key-file={store.key_file}"
    assert put_in(run, one, other, key)[0] == 0
    assert put_in(run, two, other, key)[0] == 0
    assert other.contents("ada-2") == store.contents("ada-2")


def test_import_beside_a_different_pack_of_that_name_is_refused(
    run, store, other, tmp_path
):
    one, two = tmp_path / "1.grx", tmp_path / "2.grx"
    run("export", "ada-1", one)
    run("export", "ada-2", two)
    key = f"--with-key-file={store.key_file}"
    assert put_in(run, one, other, key)[0] == 0
    pack = next((other.root / "packs" / "ada-1").glob("0*"))
    other.damage(f"packs/ada-1/{pack.name}")
    code, _, err = put_in(run, two, other, key)
    assert code == 1
    assert "another packs/ada-1" in err
    assert not other.repository.exists("ada-2")


def test_export_never_writes_over_a_file(run, tmp_path):
    file = tmp_path / "there"
    file.write_text("precious")
    code, _, err = run("export", "ada-1", file)
    assert code == 1
    assert "there already" in err
    assert file.read_text() == "precious"
    assert [p.name for p in tmp_path.glob(".there*")] == []


def test_export_of_a_damaged_store_leaves_no_file(run, store, tmp_path):
    pack = next((store.root / "packs" / "ada-1").glob("0*"))
    os.truncate(pack, 1000)
    code, _, err = run("export", "ada-1", tmp_path / "x")
    assert code == 1
    assert "has not" in err
    assert [p.name for p in tmp_path.iterdir() if "x" in p.name] == []


def table_of(data):
    length = struct.unpack("<I", data[8:12])[0]
    return json.loads(data[12 : 12 + length]), data[12 + length :]


def archive(table, rest):
    text = json.dumps(table).encode()
    return b"GREXPRT\x01" + struct.pack("<I", len(text)) + text + rest


def hostile(data):
    """Archives that somebody has changed, and what they tried."""
    table, rest = table_of(data)
    name, size = table[0]
    yield "empty", b""
    yield "magic", b"GREXPRT\x02" + data[8:]
    yield "cut", data[:-1]
    yield "added", data + b"x"
    yield "long table", data[:8] + b"\xff\xff\xff\xff" + data[12:]
    yield "no json", archive(table, rest).replace(b'[["', b"[[[", 1)
    yield "deep json", b"GREXPRT\x01" + struct.pack("<I", 10**5) + b"[" * 10**5
    yield "path", archive([[name, size], ["packs/../../etc/x", 0], *table[1:]], rest)
    yield "absolute", archive([["/etc/passwd", 0], *table], rest)
    yield "other", archive([*table, ["packs/bob-1/00000000", 0]], rest)
    yield "twice", archive([*table, [table[1][0], 0]], rest)
    yield "negative", archive([[name, size + 5], [table[1][0], -5], *table[2:]], rest)
    yield "huge", archive([[name, 1 << 61], *table[1:]], rest)
    yield "no manifest", archive(table[1:], rest[size:])
    yield "renamed", archive([["manifests/eve", size], *table[1:]], rest)
    yield "one less", archive(table[:-1], rest[: -table[-1][1]])
    swapped = [table[0], [table[2][0], table[1][1]], [table[1][0], table[2][1]]]
    yield "swapped", archive([*swapped, *table[3:]], rest)


def test_import_of_a_hostile_file_stores_nothing(run, store, other, tmp_path):
    good, bad = tmp_path / "good.grx", tmp_path / "bad.grx"
    run("export", "ada-2", good)
    for what, data in hostile(good.read_bytes()):
        bad.write_bytes(data)
        code, _, err = put_in(run, bad, other, f"--with-key-file={store.key_file}")
        assert code == 1, what
        assert err.startswith("Error: "), what
        left = [p for p in other.root.rglob("*") if p.is_file()]
        assert left == [], what


def test_import_of_flipped_bits_stores_nothing(run, store, other, tmp_path):
    good, bad = tmp_path / "good.grx", tmp_path / "bad.grx"
    run("export", "bob-1", good)
    data = good.read_bytes()
    chosen = random.Random(7)
    for _ in range(25):
        at = chosen.randrange(len(data))
        bad.write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
        code, _, _ = put_in(run, bad, other, f"--with-key-file={store.key_file}")
        assert code == 1, at
        assert [p for p in other.root.rglob("*") if p.is_file()] == [], at


def test_import_killed_at_any_call_is_repeated_and_ends(run, store, tmp_path):
    path = tmp_path / "ada.grx"
    run("export", "ada-2", path)
    backend = MemoryBackend()
    for dies_at in range(1, 100):
        mortal = {"calls": 0, "dies_at": dies_at}
        try:
            bring_in(path, DiesAt(backend, mortal), store)
        except Died:
            there = Repository(backend, clock=store.clock, keys=KEYS)
            assert [len(there.verify(info.id)) for info in there.list()] in ([], [0])
            if there.list():
                there.delete("ada-2")  # it was committed: the next one begins anew
        else:
            break
    assert dies_at > 8
    there = Repository(backend, clock=store.clock, keys=KEYS)
    assert there.open("ada-2").read("more") == store.contents("ada-2")["more"]
    assert backend.list("writing/") == []


def bring_in(path, backend, store):
    with path.open("rb") as file:
        opens = load_keys(file=store.key_file)
        import_checkpoint(file, backend, keys=KEYS, opens=opens, clock=store.clock)


@pytest.mark.parametrize("what", ["folder", "fifo", "nothing"])
def test_import_of_no_file_is_a_sentence(run, tmp_path, what):
    path = tmp_path / "it"
    if what == "folder":
        path.mkdir()
    elif what == "fifo":
        os.mkfifo(path)
    code, _, err = run("import", path)
    assert code == 1
    assert err.startswith("Error: ")


def test_export_by_another_key_file_is_opened_by_it(run, store, other, tmp_path):
    key = tmp_path / "courier.key"
    key.write_text(f"courier {base64.b64encode(os.urandom(32)).decode()}\n")
    key.chmod(0o600)
    file = tmp_path / "x.grx"
    assert run("export", "bob-1", file, f"--with-key-file={key}")[0] == 0
    assert put_in(run, file, other, f"--with-key-file={store.key_file}")[0] == 1
    assert put_in(run, file, other, f"--with-key-file={key}")[0] == 0
    assert other.contents("bob-1") == store.contents("bob-1")
