"""List, show, verify, rekey, delete: what is printed, and the exit code."""

import base64
import json
import os
import re
import sys

import pytest

from jupyterhub_gpu_reclaim.cli.main import main
from jupyterhub_gpu_reclaim.store.format import identity
from tests.support.ran import ran


def test_ls_prints_a_line_for_each_oldest_first(run):
    code, out, err = run("ls")
    assert code == 0
    assert err == ""
    lines = out.splitlines()
    assert lines[0].split()[:3] == ["ID", "SESSION", "GEN"]
    assert [line.split()[0] for line in lines[1:4]] == ["ada-1", "ada-2", "bob-1"]
    assert "2.1 MB" in lines[1]
    assert "2023-11-14" in lines[1]
    assert lines[4].startswith("3 saved")


def test_ls_shows_names_of_users_as_they_are_and_moves_no_cursor(run):
    _, out, _ = run("ls")
    assert "b[bold]o" in out
    assert "\x1b" not in out


def test_ls_json_has_what_is_shared_and_what_cannot_be_read(run_json, store, info_of):
    store.damage("manifests/bob-1", 300)
    code, rows = run_json("ls")
    assert code == 0
    assert [row["id"] for row in rows] == ["ada-1", "ada-2", "bob-1"]
    assert info_of(rows, "ada-2")["deduplicated_bytes"] > 2_000_000
    assert info_of(rows, "ada-2")["stored_bytes"] < 200_000
    assert "info" not in rows[2]
    assert "damaged" in rows[2]["problem"]


def test_ls_of_one_user(run_json):
    _, rows = run_json("ls", "--user", "ada")
    assert [row["id"] for row in rows] == ["ada-1", "ada-2"]


def test_show_lists_the_objects_of_a_checkpoint(run, run_json):
    code, out, _ = run("show", "ada-2")
    assert code == 0
    _, found = run_json("show", "ada-2")
    assert found
    assert all(each["name"] in out for each in found)


def test_verify_of_good_store_is_0(run, run_json):
    code, out, _ = run("verify")
    assert code == 0
    assert out == "3 verified, 0 damaged\n"
    assert run_json("verify", "ada-1") == (0, {"verified": ["ada-1"], "damage": []})


def test_verify_names_checkpoint_file_and_object(run, run_json, store):
    pack = next((store.root / "packs" / "ada-1").glob("0*"))
    store.damage(f"packs/ada-1/{pack.name}")
    code, found = run_json("verify")
    assert code == 1
    damage = found["damage"]
    # The later generation needs the same pack.
    assert {each["checkpoint"] for each in damage} == {"ada-1", "ada-2"}
    assert {each["file"] for each in damage} == {"criu/pages-1.img"}
    assert {each["object"] for each in damage} == {f"packs/ada-1/{pack.name}"}
    code, out, _ = run("verify")
    assert code == 1
    assert "criu/pages-1.img" in out
    assert out.endswith("3 verified, 2 damaged\n")


@pytest.mark.parametrize("name", ["manifests/bob-1", "packs/bob-1/index"])
def test_verify_goes_on_after_one_that_cannot_be_opened(run_json, store, name):
    store.damage(name, 400)
    code, found = run_json("verify")
    assert code == 1
    assert [each["checkpoint"] for each in found["damage"]] == ["bob-1"]
    assert found["verified"] == ["ada-1", "ada-2", "bob-1"]


def test_verify_with_another_key_says_which_is_missing(run, tmp_path):
    other = tmp_path / "other.key"
    other.write_text(f"other {base64.b64encode(os.urandom(32)).decode()}\n")
    other.chmod(0o600)
    code, out, _ = run("verify", key_file=other)
    assert code == 1
    assert "first" in out
    assert out.endswith("0 verified, 0 damaged, 3 without their master key\n")


def test_rekey_wraps_under_the_newest_key_and_the_old_may_go(run, run_json, store):
    old = store.key_file.read_text()
    new = f"second {base64.b64encode(os.urandom(32)).decode()}\n"
    store.key_file.write_text(old + new)
    before = {
        p: p.read_bytes() for p in (store.root / "packs").rglob("*") if p.is_file()
    }
    code, found = run_json("rekey")
    assert code == 0
    assert sorted(found["rewrapped"]) == ["ada-1", "ada-2", "bob-1"]
    assert run("rekey") == (0, "0 of 3 rewrapped, 0 failed\n", "")
    store.key_file.write_text(new)
    assert run("verify")[0] == 0
    after = {
        p: p.read_bytes() for p in (store.root / "packs").rglob("*") if p.is_file()
    }
    assert before == after


def test_rekey_goes_on_after_one_that_cannot_be_opened(run, store):
    new = f"second {base64.b64encode(os.urandom(32)).decode()}\n"
    store.key_file.write_text(store.key_file.read_text() + new)
    store.damage("manifests/ada-2", 300)
    code, out, _ = run("rekey")
    assert code == 1
    assert "ada-2" in out
    assert out.endswith("2 of 3 rewrapped, 1 failed\n")


def test_rm_of_an_older_one_keeps_what_the_newer_needs(run, store):
    code, out, _ = run("rm", "ada-1")
    assert code == 0
    assert re.fullmatch(r"1 deleted, \d.* freed\n", out)
    assert run("verify")[1] == "2 verified, 0 damaged\n"
    assert len(store.contents("ada-2")["more"]) == 5000


def test_rm_of_the_newest_is_refused_unless_it_is_forced(run, store):
    code, _, err = run("rm", "ada-1", "ada-2")
    assert code == 1
    assert "ada-2 is the newest checkpoint of ada/lab" in err
    assert store.repository.exists("ada-1")  # all or none
    assert run("rm", "--force", "ada-1", "ada-2")[0] == 0
    assert not store.repository.exists("ada-2")
    assert not (store.root / "packs" / "ada-1").exists()


def test_rm_of_everything_frees_every_pack_at_once_and_says_so(run, store):
    ids = [info.id for info in store.repository.list()]
    before = size_of(store.root / "packs")
    assert before > 2_000_000
    code, out, _ = run("rm", "--force", *ids, "--json")
    assert code == 0
    said = json.loads(out)
    assert before <= said["freed_bytes"] < before + 10_000
    assert size_of(store.root / "packs") == 0


def size_of(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_rm_of_one_that_cannot_be_read_is_refused_unless_it_is_forced(run, store):
    store.damage("manifests/ada-1", 300)
    code, _, err = run("rm", "ada-1")
    assert code == 1
    assert "cannot be read" in err
    assert run("rm", "--force", "ada-1")[0] == 0


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("{tmp}/nowhere", "There is no store at"),
        ("{tmp}", "is a folder of something else"),
        ("relative", "is a whole path"),
        ("ftp://x/y", "begins with one of"),
        ("s3://key:secret@x/y", "login is not part"),
    ],
)
def test_place_that_is_no_store_is_left_alone(
    run, tmp_path, capsys, caplog, place, says
):
    (tmp_path / "tmp").mkdir(exist_ok=True)  # as in / and /var
    mode = tmp_path.stat().st_mode
    place = place.format(tmp=tmp_path)
    try:
        code, _, told = run("ls", at=place)
    except SystemExit as ended:
        code, told = ended.code, capsys.readouterr().err + caplog.text
    assert code == 1
    assert says in told
    assert "secret" not in told
    assert not (tmp_path / "nowhere").exists()
    assert tmp_path.stat().st_mode == mode


def test_store_without_its_key_is_a_sentence(run, tmp_path):
    code, _, err = run("ls", key_file=tmp_path / "no.key")
    assert code == 1
    assert "master key" in err
    assert not (tmp_path / "no.key").exists()


def test_agents_configuration_file_names_the_store(store, tmp_path, capsys):
    config = tmp_path / "agent.py"
    (store.root / "identity").write_bytes(identity.encode("5" * 32))
    store.key_file.write_text(f"store-id {'5' * 32}\n{store.key_file.read_text()}")
    config.write_text(
        "c = get_config()\n"
        f"c.AgentApp.store_url = {str(store.root)!r}\n"
        f"c.AgentApp.master_key_file = {str(store.key_file)!r}\n"
    )
    assert main(["store", "ls", f"--AgentApp.config_file={config}"]) == 0
    assert "ada-1" in capsys.readouterr().out


def test_program_ends_with_a_sentence_never_a_traceback(store):
    program = "import sys; from jupyterhub_gpu_reclaim.cli.main import main; "
    line = [sys.executable, "-c", program + "sys.exit(main(sys.argv[1:]))"]
    line += ["store", "show", "x", *store.settings()]
    done = ran(line)
    assert done.returncode == 1
    assert done.stderr == (
        "Error: There is no checkpoint x. (checkpoint_missing)\n"
        "  Bring another checkpoint back, or start fresh.\n"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: becomes somebody else")
def test_somebody_else_than_root_gets_a_sentence(store, tmp_path):
    tmp_path.chmod(0o700)
    # All is imported before: Python itself may lie where only root can read.
    program = "import os, sys; import jupyterhub_gpu_reclaim.cli.store.listing; "
    program += "from jupyterhub_gpu_reclaim.cli.main import main; "
    program += "os.setgid(65534); os.setuid(65534); sys.exit(main(sys.argv[1:]))"
    line = ["store", "ls", *store.settings()]
    done = ran([sys.executable, "-c", program, *line])
    assert done.returncode == 1
    assert "Are you root?" in done.stderr
    assert "Traceback" not in done.stderr
