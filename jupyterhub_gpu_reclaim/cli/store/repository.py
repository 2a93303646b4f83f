"""Opens the store of the arguments, and creates none by mistake.

A folder is checked before it is opened: opening one for the first time would create a
store in it, and close it to others.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from traitlets import TraitError

from jupyterhub_gpu_reclaim.common.clock import SystemClock
from jupyterhub_gpu_reclaim.common.errors import BadRequest
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.node.app import AgentApp
from jupyterhub_gpu_reclaim.node.setup.store import keys_of, place_of
from jupyterhub_gpu_reclaim.store.backends.identified import IdentifiedBackend
from jupyterhub_gpu_reclaim.store.format import layout
from jupyterhub_gpu_reclaim.store.repository import Repository

if TYPE_CHECKING:
    import argparse

    from jupyterhub_gpu_reclaim.common.clock import Clock
    from jupyterhub_gpu_reclaim.store.backend import Backend
    from jupyterhub_gpu_reclaim.store.format.keys import Wrapper

#: Objects and folders of a store; not ``tmp/``, which others have, too.
_OBJECTS = (layout.MANIFESTS, layout.PACKS, layout.INTENTS, layout.IDENTITY)


class OpenStore(NamedTuple):
    backend: Backend
    keys: Wrapper
    repository: Repository
    clock: Clock


def open_store(args: argparse.Namespace) -> OpenStore:
    """The store of ``--store`` or of the agent's configuration.

    Raises:
        BadRequest: there is no store, or the arguments contradict each other.
        StoreError: it cannot be opened, or its keys are not here.
    """
    settings = settings_of(args)
    check_folder(settings, may_be_new=False)
    clock = SystemClock()
    state = Path(settings.state_dir)
    keys = keys_of(settings, state)
    backend = place_of(settings)
    # A key that says of no store may open one that is named; the agent does not.
    if keys.store_id or not args.store:
        backend = IdentifiedBackend(backend, keys, settings.store_url)
    return OpenStore(backend, keys, Repository(backend, clock=clock, keys=keys), clock)


def check_folder(settings: AgentApp, *, may_be_new: bool) -> None:
    """Check that a folder is a store's, before it is opened.

    Raises:
        BadRequest: it is not.
    """
    path = settings.store_url.removeprefix("file://")
    if path.startswith("/"):
        _check_folder(Path(path), may_be_new=may_be_new)


def settings_of(args: argparse.Namespace) -> AgentApp:
    """The agent's settings, without starting it; BadRequest: they cannot be read."""
    try:
        return _read_settings(args)
    except TraitError as error:
        refuse(f"{error}.")


def _read_settings(args: argparse.Namespace) -> AgentApp:
    settings = AgentApp()
    if args.store:
        if args.config:
            refuse("Give --store or --config, not both.")
        settings.store_url = _absolute(args.store)
        settings.store_options = dict(_option(each) for each in args.option)
        settings.store_options_file = args.options_file
    else:
        if args.option or args.options_file:
            refuse("--option and --options-file go with --store.")
        settings.config_file = args.config or settings.config_file
        settings.initialize([])
    _set_keys(settings, args)
    return settings


def _set_keys(settings: AgentApp, args: argparse.Namespace) -> None:
    given = {
        "master_key_file": args.key_file,
        "master_key_dir": args.key_dir,
        "master_key_service": args.key_service,
    }
    if any(given.values()):
        for name, value in given.items():
            setattr(settings, name, value)


def _absolute(place: str) -> str:
    """A folder's whole path; any other address as it is."""
    path = place.removeprefix("file://")
    return place if "://" in path else str(Path(path).absolute())


def _option(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found:
        refuse(f"An option is NAME=VALUE, not {text!r}.")
    return name, value


def _check_folder(path: Path, *, may_be_new: bool) -> None:
    try:
        if not path.is_dir():
            if may_be_new and not path.exists():
                return
            refuse(f"There is no store at {path}.")
        names = {each.name + "/" * each.is_dir() for each in path.iterdir()}
    except OSError as error:
        why = (error.strerror or "unknown error").lower()
        refuse(f"{path} cannot be read: {why}. Are you root?")
    if names and names.isdisjoint(_OBJECTS):
        refuse(f"{path} is a folder of something else, no store.")


def refuse(what: str) -> NoReturn:
    raise BadRequest(Reason.INVALID, what=what)
