"""Finds our copy of CRIU, checks whether it works, and builds its command line.

It is a folder made by ``criu install``, with its own loader and libraries. Nothing here
touches a session.
"""

from __future__ import annotations

import functools
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.findings import finding
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.linux import architecture, capabilities

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jupyterhub_gpu_reclaim.common.models import Finding

#: Where ``criu install`` puts it unless told otherwise.
FOLDER = Path("/var/lib/jupyterhub-gpu-reclaim/criu")
#: Linux 6.16 refuses to tell SO_PASSCRED of inet sockets, which CRIU asked for before.
MINIMUM = (4, 2)
#: Complaints that come in runs which end well, too.
HARMLESS = (
    "rlimit: Can't setup RLIMIT_NOFILE for self",
    "Can't get 1:",
    "Unable to create tun:",  # asked of every place; few containers have the device
)
NO_REASON = "no reason given"
#: Of an agent's own container. Restores have a /proc of their own (``nsenter``).
READ_ONLY_PROC = "ns_last_pid sysctl is inaccessible: Read-only file system"
#: CRIU's answers come in a second; more means that it hangs.
PATIENCE = 20.0
#: What CRIU's loader must not take from the session's file system, and GnuTLS (which
#: CRIU links and we never use) must not read there.
ENVIRONMENT = {"PATH": "/nowhere", "GNUTLS_NO_IMPLICIT_INIT": "1", "HOME": "/nowhere"}
#: A file that glibc's loader always reads in the session's file system: the libraries
#: named there would be loaded into CRIU, which is root. The second path, of the same
#: length, cannot be created: a process' number has no letters.
PRELOAD = b"/etc/ld.so.preload"
NO_PRELOAD = b"/proc/no-preload/x"
#: CRIU's cache of facts about the kernel, in the session's file system: addresses
#: among them, which it uses as root. The other path cannot be made.
_CACHE = re.compile(rb"/[^\0]{1,64}criu\.kdat(?=\0)")
_NO_CACHE = b"/proc/0x/"


@dataclass(frozen=True)
class Criu:
    """A CRIU that can be started anywhere: its binary, its loader, its libraries."""

    binary: Path
    loader: Path
    libraries: Path

    def command(self, *arguments: str) -> list[str]:
        words = (self.loader, "--library-path", self.libraries, self.binary)
        return [*map(str, words), *arguments]

    def version(self) -> tuple[int, ...]:
        """CRIU's version, e.g. (4, 1, 1).

        Raises:
            Refused: it cannot be started.
        """
        try:
            status = self.binary.stat()
        except OSError as error:
            raise Refused(Reason.CRIU_UNUSABLE, why=str(error.strerror)) from None
        same = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
        return _version(self, same)


# A capture asks for it several times, while its session stands still.
@functools.lru_cache
def _version(criu: Criu, _: tuple[int, ...]) -> tuple[int, ...]:
    code, text = run(criu.command("--version"))
    match = re.search(r"Version: (\d+(?:\.\d+)*)", text)
    if code != 0 or match is None:
        lines = text.strip().splitlines() or ["it says nothing"]
        raise Refused(Reason.CRIU_UNUSABLE, why=lines[-1], detail=text)
    return tuple(int(number) for number in match[1].split("."))


def locate(folder: Path = FOLDER) -> Criu:
    """The CRIU to use.

    Raises:
        Refused: there is none, it is too old, or it cannot be started.
    """
    found = private_copy(folder)
    minimum = _dotted(MINIMUM)
    if found is None:
        raise Refused(Reason.CRIU_MISSING, minimum=minimum, found="")
    version = found.version()
    if version < MINIMUM:
        older = f", only {_dotted(version)}"
        raise Refused(Reason.CRIU_MISSING, minimum=minimum, found=older)
    return found


def check(folder: Path = FOLDER) -> list[Finding]:
    """Everything that keeps this machine from saving sessions; empty when nothing does.

    A missing capability is not fatal: the sessions of root can be saved without.
    """
    findings = []
    if not architecture.is_known():
        name = architecture.name()
        findings.append(finding(Reason.ARCHITECTURE_UNTRIED, architecture=name))
    try:
        criu = locate(folder)
    except Refused as error:
        return [*findings, finding(error.reason, **error.facts)]
    code, text = run(criu.command("check"))
    if code != 0 and not _says_only(text, READ_ONLY_PROC):
        findings.append(finding(Reason.CRIU_UNUSABLE, why=_complaint(text)))
    if not capabilities.has("SYS_RESOURCE"):
        findings.append(
            finding(
                Reason.CAPABILITY_MISSING,
                fatal=False,
                capability="CAP_SYS_RESOURCE",
                user="any user but root",
            )
        )
    return findings


def _complaint(text: str) -> str:
    """Why its test failed; without rights it prints that before it has a log."""
    why = first_error(text)
    lines = [line.strip(" :") for line in text.splitlines() if line.strip(" :")]
    return lines[0] if why == NO_REASON and lines else why


def _says_only(log: str, words: str) -> bool:
    errors = [
        line
        for line in log.splitlines()
        if line.startswith("Error ") and not any(each in line for each in HARMLESS)
    ]
    return bool(errors) and all(words in line for line in errors)


def first_error(log: str) -> str:
    """CRIU's first complaint, without its source position; "no reason given" if none.

    Lines look like ``(00.012345)    301: Error (criu/files.c:12): Can't …``.
    """
    for line in log.splitlines():
        match = re.search(r"Error \([^)]*\): (.*)", line)
        if match and not any(words in match[1] for words in HARMLESS):
            words = re.sub(r"^[a-z0-9_-]+: ", "", match[1].strip())
            return words.rstrip(".") or NO_REASON
    return NO_REASON


def blinded(loader: bytes) -> bytes:
    """A loader that does not look for ``/etc/ld.so.preload``; harmless twice.

    Raises:
        Refused: it is not the loader that we know.
    """
    if loader.count(PRELOAD) + loader.count(NO_PRELOAD) != 1:
        raise Refused(Reason.CRIU_UNUSABLE, why="its loader is not as expected")
    return loader.replace(PRELOAD, NO_PRELOAD)


def forgetful(binary: bytes) -> bytes:
    """A CRIU that finds out about the kernel each time; harmless twice.

    ``/run/criu.kdat`` lies in the session's file system. CRIU believes what stands
    there, up to addresses that it calls as root in the middle of a restore.
    """
    return _CACHE.sub(lambda path: _NO_CACHE.ljust(len(path[0]), b"-"), binary)


def private_copy(folder: Path) -> Criu | None:
    """The copy that ``criu install`` made, if it is there; it need not run."""
    loaders = sorted((folder / "lib").glob("ld-linux*.so.*"))
    if not loaders or not (folder / "criu").is_file():
        return None
    return Criu(folder / "criu", loaders[0], folder / "lib")


def run(
    command: list[str],
    *,
    seconds: float = PATIENCE,
    environment: Mapping[str, str] | None = None,
) -> tuple[int, str]:
    """Exit status and all output; a program that cannot run or hangs answers 127."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
            env=environment,
        )
    except OSError as error:
        return 127, error.strerror or str(error)
    except subprocess.TimeoutExpired:
        return 127, f"no answer in {seconds:.0f} s"
    return done.returncode, done.stdout + done.stderr


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(str(number) for number in version)
