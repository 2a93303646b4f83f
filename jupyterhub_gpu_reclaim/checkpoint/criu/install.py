"""Installs a private CRIU: Debian's packages, checked by apt, unpacked into one folder.

Debian 12's CRIU is too old for today's kernels and Ubuntu 24.04 has none, so the
packages of a newer Debian are taken, with every library that they need and their own
loader. The system's packages, their state and apt's configuration are never touched.
Trust is left to apt: the index must be signed by a key of Debian's archive keyring, and
the packages' digests stand in the index.

An image is built on another machine than it runs on, and without rights, so CRIU is
only asked for its version here. ``criu check`` says whether it works on a machine.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.checkpoint.criu import binary as criu_module
from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyterhub_gpu_reclaim.checkpoint.criu.binary import Criu

#: 4.2.1, as in sid, but it will get its fixes when it has become stable, and does not
#: move on. Trixie's 4.1.1 cannot save any inet socket on Linux 6.16 or later.
SUITE = "forky"
MIRROR = "http://deb.debian.org/debian"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
MANIFEST = "MANIFEST.json"
#: Seconds for one command of apt: an index of 10 MB, packages of 9 MB.
APT_PATIENCE = 600.0


def install(
    to: Path = criu_module.FOLDER,
    *,
    mirror: str = MIRROR,
    again: bool = False,
    report: Callable[[str], None],
) -> Criu:
    """Put a private CRIU into that folder; does nothing where it is there already.

    ``again`` replaces a copy that is there, to take its fixes.

    Raises:
        Refused: something is missing, could not be fetched or does not run; the former
            copy, if any, is as it was.
    """
    with contextlib.suppress(Refused):
        if not again and (present := criu_module.locate(to)):
            report(f"CRIU is already in {to}")
            return present
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise _refused(f"{tool} is missing; this needs a Debian or an Ubuntu")
    if not KEYRING.is_file():
        raise _refused(
            "Debian's archive keys are missing; run: apt-get install"
            " debian-archive-keyring"
        )
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".criu-", dir=to.parent) as name:
            _install(Path(name), to, mirror, report)
    except OSError as error:
        raise _refused(f"{error.filename}: {error.strerror}") from error
    return _runs(to)


def _install(work: Path, to: Path, mirror: str, report: Callable[[str], None]) -> None:
    report(f"Fetching CRIU of Debian {SUITE} from {mirror} …")
    packages = _fetch(work, mirror)
    report(f"Unpacking {len(packages)} packages …")
    made = unpack(packages, work, {"suite": SUITE, "mirror": mirror})
    report(f"It runs; putting it into {to} …")
    os.sync()
    if to.exists():
        to.rename(work / "former")
    made.rename(to)


def unpack(packages: list[Path], work: Path, source: dict[str, str]) -> Path:
    """Make a private copy of these packages below a work folder; where it lies.

    Needs no rights beyond those of a file's owner.

    Raises:
        Refused: the packages do not hold what they should, or it does not run.
    """
    unpacked, made = work / "unpacked", work / "made"
    for file in packages:
        _run(["dpkg-deb", "-x", str(file), str(unpacked)])
    _gather(unpacked, made)
    listed = [
        {"file": one.name, "sha256": hashlib.sha256(one.read_bytes()).hexdigest()}
        for one in packages
    ]
    text = json.dumps({**source, "packages": listed}, indent=1)
    (made / MANIFEST).write_text(text + "\n")
    _runs(made)
    return made


def _runs(folder: Path) -> Criu:
    found = criu_module.private_copy(folder)
    if found is None:
        raise _refused(f"there is none in {folder}")
    found.version()
    return found


def _fetch(work: Path, mirror: str) -> list[Path]:
    for folder in ("lists/partial", "cache/archives/partial"):
        (work / folder).mkdir(parents=True)
    (work / "status").touch()
    source = f"deb [signed-by={KEYRING}] {mirror} {SUITE} main\n"
    (work / "sources.list").write_text(source)
    options = {
        "Dir::Etc::sourcelist": work / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferences": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
        "Dir::State": work,
        "Dir::State::lists": work / "lists",
        "Dir::State::status": work / "status",
        "Dir::Cache": work / "cache",
        "Dir::Cache::archives": work / "cache/archives",
        # The folder is ours alone, which apt's own user cannot enter.
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
        "Acquire::Retries": "3",
    }
    apt = ["apt-get", "-q", "-y"]
    for name, value in options.items():
        apt += ["-o", f"{name}={value}"]
    # Without this, apt calls an index that it could not fetch a warning.
    _run([*apt, "--error-on=any", "update"])
    _run([*apt, "--no-install-recommends", "--download-only", "install", "criu"])
    return sorted((work / "cache/archives").glob("*.deb"))


def _gather(unpacked: Path, made: Path) -> None:
    binary = unpacked / "usr/sbin/criu"
    libraries = list((unpacked / "usr/lib").glob("*-linux-gnu*/*.so*"))
    loaders = [file for file in libraries if file.name.startswith("ld-linux")]
    if not binary.is_file() or not loaders:
        raise _refused("Debian's packages hold no CRIU for this kind of machine")
    (made / "lib").mkdir(parents=True)
    shutil.copy2(binary, made / "criu")
    (made / "criu").write_bytes(criu_module.forgetful(binary.read_bytes()))
    for file in libraries:
        if file.is_file():
            shutil.copy2(file, made / "lib" / file.name)
    (made / "copyright").mkdir()
    for file in (unpacked / "usr/share/doc").glob("*/copyright"):
        shutil.copy2(file, made / "copyright" / file.parent.name)
    for file in loaders:
        loader = made / "lib" / file.name
        loader.write_bytes(criu_module.blinded(loader.read_bytes()))
    made.chmod(0o755)


def _run(command: list[str]) -> None:
    environment = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    code, text = criu_module.run(command, seconds=APT_PATIENCE, environment=environment)
    if code != 0:
        complaints = [
            line.removeprefix("E: ")
            for line in text.splitlines()
            if line.startswith(("E: ", "dpkg-deb: error", "no answer in"))
        ]
        why = complaints[0] if complaints else f"it ended with {code}"
        raise _refused(f"{command[0]} failed: {why}", text)


def _refused(why: str, detail: str = "") -> Refused:
    return Refused(Reason.CRIU_NOT_INSTALLED, why=why, detail=detail)
