"""``jupyterhub-gpu-reclaim criu install|check``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from jupyterhub_gpu_reclaim.checkpoint.criu import binary
from jupyterhub_gpu_reclaim.checkpoint.criu import install as criu_install
from jupyterhub_gpu_reclaim.cli.output import say, say_findings
from jupyterhub_gpu_reclaim.common.text import sentence

if TYPE_CHECKING:
    import argparse


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "criu", help="the program that saves and restores processes"
    )
    actions = parser.add_subparsers(required=True, metavar="ACTION")

    def add(name: str, text: str) -> argparse.ArgumentParser:
        return actions.add_parser(name, help=text, description=sentence(text))

    install = add("install", "unpack Debian's CRIU into a private folder")
    _folder(install, "--to", "where to put it")
    install.add_argument(
        "--mirror",
        default=criu_install.MIRROR,
        help="Debian mirror (default: %(default)s)",
    )
    install.add_argument(
        "--again",
        action="store_true",
        help="replace a copy that is there, to take its fixes",
    )
    install.set_defaults(run=_install)

    check = add("check", "say whether CRIU works on this machine")
    _folder(check, "--folder", "where the private copy is")
    check.set_defaults(run=_check)


def _folder(parser: argparse.ArgumentParser, option: str, text: str) -> None:
    parser.add_argument(
        option,
        dest="folder",
        metavar="FOLDER",
        type=lambda value: Path(value).absolute(),
        default=binary.FOLDER,
        help=f"{text} (default: %(default)s)",
    )


def _install(args: argparse.Namespace) -> int:
    found = criu_install.install(
        args.folder,
        mirror=args.mirror,
        again=args.again,
        report=say,
    )
    _print_found(found)
    # An image is built without the rights that this needs, and on another machine.
    say("  Whether it works where sessions run: jupyterhub-gpu-reclaim criu check")
    return 0


def _check(args: argparse.Namespace) -> int:
    findings = binary.check(args.folder)
    say_findings(findings)
    if any(finding.fatal for finding in findings):
        return 1
    _print_found(binary.locate(args.folder))
    return 0


def _print_found(found: binary.Criu) -> None:
    version = ".".join(str(number) for number in found.version())
    say(f"CRIU {version}: {found.binary}")
