"""Puts our pages over those of the administrator, and those over JupyterHub's.

JupyterHub takes a page from the first folder of ``template_paths`` that has it, so a
Hub's own ``not_running.html`` would hide ours, or ours would hide it. Here ours is
taken first, and it extends ``beneath/`` and its own name: the page that would be shown
without us. The templates come by an extension of Jinja that ``configure(c)`` adds to
``c.JupyterHub.jinja_environment_options``; ``template_paths`` is the administrator's.
A page beneath that lacks a block which ours fills hides it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import (
    BaseLoader,
    ChoiceLoader,
    Environment,
    FileSystemLoader,
    PrefixLoader,
    TemplateNotFound,
)
from jinja2.ext import Extension

from jupyterhub_gpu_reclaim.hub.merging import current

if TYPE_CHECKING:
    from collections.abc import Callable

TEMPLATES = Path(__file__).parent / "templates"
#: Name of the extension, as Jinja takes it.
EXTENSION = f"{__name__}.OurPages"
_BENEATH = "beneath"


def add(c: Any) -> None:
    options = dict(current(c.JupyterHub, "jinja_environment_options", {}))
    extensions = list(options.get("extensions", ()))
    if EXTENSION not in extensions:
        options["extensions"] = [*extensions, EXTENSION]
        c.JupyterHub.jinja_environment_options = options


class _Beneath(BaseLoader):
    """The pages without ours; for an error without its own page, the common one."""

    def __init__(self, loader: BaseLoader) -> None:
        self._loader = loader

    def get_source(
        self, environment: Environment, template: str
    ) -> tuple[str, str | None, Callable[[], bool] | None]:
        try:
            return self._loader.get_source(environment, template)
        except TemplateNotFound:
            if not template.removesuffix(".html").isdigit():
                raise
            return self._loader.get_source(environment, "error.html")


class OurPages(Extension):
    """An environment with it looks for a page among ours first."""

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        if environment.loader is not None:
            loader = environment.loader
            beneath = PrefixLoader({_BENEATH: _Beneath(loader)})
            ours = FileSystemLoader(TEMPLATES)
            environment.loader = ChoiceLoader([ours, beneath, loader])
