"""Opens the store of the arguments, and creates none by mistake.

A folder is checked before it is opened: opening one for the first time would create a
store in it, and close it to others.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from jupyterhub_gpu_reclaim.common.clock import SystemClock
from jupyterhub_gpu_reclaim.common.errors import BadRequest
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.node import state_folder
from jupyterhub_gpu_reclaim.node.app import AgentApp
from jupyterhub_gpu_reclaim.node.setup.store import keys_of, place_of
from jupyterhub_gpu_reclaim.store.backends.identified import IdentifiedBackend
from jupyterhub_gpu_reclaim.store.format import layout
from jupyterhub_gpu_reclaim.store.repository import Repository

if TYPE_CHECKING:
    import argparse


#: Objects and folders of a store; not ``tmp/``, which others have, too.
_OBJECTS = (layout.MANIFESTS, layout.PACKS, layout.INTENTS, layout.IDENTITY)


def open_store(args: argparse.Namespace) -> Repository:
    """The store of the arguments or of the agent's configuration.

    Raises:
        BadRequest: there is no store.
        StoreError: it cannot be opened, or its keys are not here.
    """
    settings = settings_of(args)
    check_folder(settings, may_be_new=False)
    keys = keys_of(settings, state_folder.place())
    backend = place_of(settings)
    # A key that says of no store may open one that is named; the agent does not.
    if keys.store_id or not _is_named(args):
        backend = IdentifiedBackend(backend, keys, settings.store_url)
    return Repository(backend, clock=SystemClock(), keys=keys)


def check_folder(settings: AgentApp, *, may_be_new: bool) -> None:
    """Check that a folder is a store's, before it is opened.

    Raises:
        BadRequest: it is not.
    """
    path = Path(settings.store_url.removeprefix("file://"))
    if not path.is_absolute():
        return
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


def settings_of(args: argparse.Namespace) -> AgentApp:
    """The agent's settings, without starting it; a mistake in them ends the program."""
    settings = AgentApp()
    if _is_named(args):
        settings.config_file = ""
    settings.initialize(args.settings)
    return settings


def _is_named(args: argparse.Namespace) -> bool:
    """Whether another store is meant than that of the agent's configuration file."""
    return any(each.startswith("--AgentApp.store_url=") for each in args.settings)


def refuse(what: str) -> NoReturn:
    raise BadRequest(Reason.INVALID, what=what)
