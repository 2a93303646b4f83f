"""The steps of a release, as far as they run without accounts, images and registries.

``scripts/release`` runs as it is; docker, helm, cosign, syft and gh are programs that
note what they were asked for and leave what the real ones do. What wheel and sdist hold
is ``test_distribution.py``'s.
"""

import datetime
import json
import os
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.ran import ran

ROOT = Path(__file__).parents[1]
DIGEST = "sha256:" + "ab" * 32
CHART = "sha256:" + "cd" * 32
#: Each is named as the program that it stands for.
PROGRAMS = {
    "docker": f"""
case "$1 $2" in
    "buildx build")
        while [ "$1" != --metadata-file ]; do shift; done
        printf '{{\\n  "containerimage.digest": "{DIGEST}"\\n}}\\n' > "$2" ;;
    "create --platform") echo made ;;
    cp*) cp -r "$FOLDER/criu" "$3" ;;
esac
""",
    "syft": 'for last; do :; done; echo "{}" > "${last#cyclonedx-json=}"\n',
    "helm": f"""
case "$1" in
    package)
        [[ $4 =~ ^[0-9]+[.][0-9]+[.][0-9]+(-[a-z0-9]+)?$ ]] # else no semantic version
        echo chart > "dist/jupyterhub-gpu-reclaim-$4.tgz" ;;
    push) echo "Pushed: $3" >&2; echo "Digest: {CHART}" >&2 ;;
esac
""",
    "cosign": """
[ -z "${REFUSE:-}" ] || exit 1
[ "$1" != sign-blob ] || echo bundle > dist/SHA256SUMS.sigstore.json
""",
    "gh": "",
}
COPYRIGHT = "License: GPL-2\nwhat it says\n"


@pytest.fixture
def folder(tmp_path):
    """A checkout with what the steps need, and the programs."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts", ignore=_installed)
    shutil.copytree(ROOT / "charts", tmp_path / "charts", symlinks=True)
    shutil.copy2(ROOT / "CHANGELOG.md", tmp_path)
    (tmp_path / "bin").mkdir()
    for name, code in PROGRAMS.items():
        file = tmp_path / "bin" / name
        note = f'#!/bin/bash\nset -e\necho "{name} $*" >> "$FOLDER/log"\n'
        file.write_text(note + code)
        file.chmod(0o755)
    criu = tmp_path / "criu"
    (criu / "copyright").mkdir(parents=True)
    (criu / "copyright" / "libgmp10").write_text(COPYRIGHT)
    package = {"file": "libgmp10_2%3a6.3.0+dfsg-5_amd64.deb", "sha256": "ef" * 32}
    manifest = {"suite": "forky", "packages": [package]}
    (criu / "MANIFEST.json").write_text(json.dumps(manifest))
    (tmp_path / "dist" / "python").mkdir(parents=True)
    (tmp_path / "dist" / "python" / "one.whl").write_text("wheel")
    return tmp_path


def _installed(_folder, names):
    return [name for name in names if name == "node_modules"]


def release(folder, *words, tag="0.1.0", **more):
    """A step; what the programs were asked for meanwhile, and what it told."""
    environment = {
        **os.environ,
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "FOLDER": str(folder),
        "GITHUB_REF_NAME": tag,
        "GITHUB_REPOSITORY": "Some-Lab/gpu-reclaim",
        "GITHUB_OUTPUT": str(folder / "output"),
        **more,
    }
    done = ran([folder / "scripts" / "release", *words], env=environment)
    log = folder / "log"
    asked = log.read_text().splitlines() if log.exists() else []
    log.unlink(missing_ok=True)
    return done, asked


def test_image_is_built_for_both_machines_and_signed_as_it_was_pushed(folder):
    done, asked = release(folder, "image", "agent")
    assert done.returncode == 0, done.stderr
    image = "ghcr.io/some-lab/jupyterhub-gpu-reclaim-agent"
    built, *after = asked
    assert "--platform linux/amd64,linux/arm64 --build-arg VERSION=0.1.0" in built
    assert f"--tag {image}:0.1.0 --push" in built
    assert f"cosign sign --yes --recursive {image}@{DIGEST}" in after
    told = [f"image={image}", f"digest={DIGEST}"]
    assert (folder / "output").read_text().splitlines() == told
    for machine in ("amd64", "arm64"):
        file = f"dist/agent-{machine}.cdx.json"
        assert json.loads((folder / file).read_text()) == {}
        attest = "cosign attest --yes --type cyclonedx"
        assert f"{attest} --predicate {file} {image}@{DIGEST}" in after


def test_agents_image_comes_with_crius_licences_and_its_packages(folder):
    release(folder, "image", "agent")
    text = (folder / "dist/criu-licences.txt").read_text()
    assert "libgmp10 2:6.3.0+dfsg-5 (amd64)" in text
    assert COPYRIGHT in text
    bom = json.loads((folder / "dist/criu.cdx.json").read_text())
    [component] = bom["components"]
    assert (component["name"], component["version"]) == ("libgmp10", "2:6.3.0+dfsg-5")
    assert component["hashes"][0]["content"] == "ef" * 32
    assert component["purl"].startswith("pkg:deb/debian/libgmp10@2%3A6.3.0%2Bdfsg-5?")


def test_image_that_cannot_be_signed_is_told_to_no_later_step(folder):
    done, _ = release(folder, "image", "agent", REFUSE="1")
    assert done.returncode != 0
    assert not (folder / "output").exists()


def test_chart_has_the_tags_number_and_is_signed_as_it_was_pushed(folder):
    done, asked = release(folder, "chart")
    assert done.returncode == 0, done.stderr
    name = "ghcr.io/some-lab/charts/jupyterhub-gpu-reclaim"
    package, _, sign = asked
    assert "--version 0.1.0 --app-version 0.1.0" in package
    assert sign == f"cosign sign --yes {name}@{CHART}"
    assert (folder / "dist/chart.image").read_text() == f"{name}:0.1.0@{CHART}\n"
    values = folder / "charts/jupyterhub-gpu-reclaim/values.yaml"
    assert "  registry: ghcr.io/some-lab\n" in values.read_text()


def test_page_has_every_file_and_the_sums_of_all(folder):
    release(folder, "image", "agent")
    release(folder, "chart")
    assert release(folder, "sums")[0].returncode == 0
    check = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    done = ran(check, cwd=folder / "dist")
    assert done.returncode == 0, done.stderr
    files = {path.name for path in (folder / "dist").iterdir()}
    sums = {line.rpartition(":")[0] for line in done.stdout.splitlines()}
    assert sums == files - {"SHA256SUMS", "SHA256SUMS.sigstore.json"}
    assert "one.whl" in sums
    done, [asked] = release(folder, "page")
    assert done.returncode == 0, done.stderr
    assert {word[5:] for word in asked.split() if word.startswith("dist/")} == files
    assert "--verify-tag --title 0.1.0" in asked
    notes = (folder / "build/release/notes.md").read_text()
    assert "idle" in notes.lower()
    for image in ("agent", "chart"):
        assert (folder / f"dist/{image}.image").read_text().strip() in notes


CHECK = ROOT / "scripts" / "release-check"
TODAY = datetime.date(2026, 12, 1)


@pytest.fixture
def checkout(tmp_path):
    """A commit with what ``release-check`` looks at; its pages are fresh."""
    names = [*runpy.run_path(str(CHECK))["FRESH"], "CHANGELOG.md"]
    package = "jupyterhub_gpu_reclaim/lab/labextension/package.json"
    for name in [*names, package, "scripts/release-check"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tmp_path / name)
    (tmp_path / "docs/generate.py").write_text("")
    for name in names[:-1]:
        (tmp_path / name).write_text(f"seen on {TODAY}\n")
    (tmp_path / package).write_text('{"version": "0.1.0"}')
    (tmp_path / "CHANGELOG.md").write_text("## 0.1.0 - 2026-12-01\n")
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return tmp_path


def git(folder, *words):
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    command = ["git", *who, *words]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


def commit(folder):
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", "x")


def checked(folder, capsys, tag="0.1.0"):
    main = runpy.run_path(str(folder / "scripts" / "release-check"))["main"]
    status = main(tag, TODAY)
    missing, _, by_hand = capsys.readouterr().out.partition("By hand:\n")
    assert "trusted publisher" in by_hand
    return status, [line for line in missing.splitlines() if line]


def test_nothing_is_missing_but_what_a_person_does(checkout, capsys):
    assert checked(checkout, capsys) == (0, ["Nothing is missing here."])
    git(checkout, "tag", "0.1.0")
    assert checked(checkout, capsys) == (0, ["Nothing is missing here."])


@pytest.mark.parametrize(
    ("file", "text", "sentence"),
    [
        ("CHANGELOG.md", "## 0.2.0 - 2026-12-01\n", "has no heading '## 0.1.0 - Y"),
        (
            "jupyterhub_gpu_reclaim/lab/labextension/package.json",
            '{"version": "0.0.9"}',
            "package.json says 0.0.9.",
        ),
        (
            "docs/install.md",
            "docker pull x/jupyterhub-gpu-reclaim-agent:0.0.9\n",
            "docs/install.md names an image of 0.0.9.",
        ),
        (
            "docs/explanation/track-record.md",
            "on 2026-10-01\n",
            "track-record.md is of 2026-10-01; it should be no older than 30 days.",
        ),
        (
            "docs/generate.py",
            "import sys; sys.exit('api.md is not what the code says')\n",
            "out of date (docs/generate.py): api.md is not what the code says",
        ),
    ],
)
def test_what_is_missing_is_said_in_a_sentence(checkout, capsys, file, text, sentence):
    (checkout / file).write_text(text)
    commit(checkout)
    status, [said] = checked(checkout, capsys)
    assert status == 1
    assert sentence in said


def test_change_in_no_commit_and_tag_at_another_one_are_said(checkout, capsys):
    git(checkout, "tag", "0.1.0")
    (checkout / "CHANGELOG.md").write_text("## 0.1.0 - 2026-12-01\n\nmore\n")
    assert checked(checkout, capsys) == (
        1,
        ["There are changes that are in no commit."],
    )
    commit(checkout)
    status, [said] = checked(checkout, capsys)
    assert status == 1
    assert said.startswith("The tag 0.1.0 is at another commit")


def test_version_without_a_day_is_the_last_thing_to_do_and_no_tag_is_without(
    checkout, capsys
):
    (checkout / "CHANGELOG.md").write_text("## 0.1.0 - unreleased\n")
    commit(checkout)
    assert checked(checkout, capsys) == (0, ["Nothing is missing here."])
    git(checkout, "tag", "0.1.0")
    status, [said] = checked(checkout, capsys)
    assert status == 1
    assert "calls 0.1.0 unreleased" in said
