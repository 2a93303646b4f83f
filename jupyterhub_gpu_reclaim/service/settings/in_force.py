"""The settings of the service as they are in force, for administrators to read.

What may be a secret is not told: an address can hold a password, or be one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from inspect import cleandoc
from typing import TYPE_CHECKING

from traitlets.config import Configurable

from jupyterhub_gpu_reclaim.service.settings.options import Options
from jupyterhub_gpu_reclaim.service.settings.validation import PARTS

if TYPE_CHECKING:
    from traitlets.config import Application

#: Names of settings whose value is never shown.
_SECRET = re.compile(r"journal_url|webhook_url|.*(token|secret|password)")


@dataclass(frozen=True)
class SettingInForce:
    """One setting."""

    name: str  #: ``IdlePolicy.idle_after``
    value: str
    changed: bool  #: it is not the default
    about: str  #: the first sentence of its help
    help: str


def settings_in_force(app: Application) -> list[SettingInForce]:
    """All settings of the service and its policies, in the order of their sections.

    Args:
        app: the service, whose configuration is read.
    """
    found = _of(app, Options, type(app).__name__)
    for part in PARTS:
        # Its own ``__init__`` may want other parts; the values need none.
        shown = part.__new__(part)
        Configurable.__init__(shown, parent=app)
        found += _of(shown, part, part.__name__)
    return found


def _of(owner: Configurable, kind: type[object], section: str) -> list[SettingInForce]:
    own = getattr(kind, "class_own_traits")(config=True)  # noqa: B009 - of HasTraits
    return [_one(owner, name, section) for name in own]


def _one(owner: Configurable, name: str, section: str) -> SettingInForce:
    trait, value = owner.traits()[name], getattr(owner, name)
    changed = value != trait.default()
    text = cleandoc(str(trait.help))
    shown = repr(value)
    if changed and _SECRET.fullmatch(name):
        shown = "set, and not shown"
    about = re.split(r"(?<=\.)\s", text, maxsplit=1)[0]
    return SettingInForce(f"{section}.{name}", shown, changed, about, text)
