"""Checks settings before anything acts on them: names, types and bounds.

The same checks hold for a command line and the call of ``configure(c)``. They return
sentences for an administrator and raise nothing. A value is repeated only if it cannot
be a secret, that is, if a number or a choice was expected.
"""

from __future__ import annotations

import difflib
import math
import re
from typing import TYPE_CHECKING, Any

from jupyterhub.services.auth import HubOAuth
from traitlets import (
    Bool,
    Container,
    Dict,
    Enum,
    Float,
    HasTraits,
    Int,
    TraitError,
    TraitType,
)
from traitlets.config import Application, Configurable
from traitlets.config.loader import DeferredConfig, LazyConfigValue

from jupyterhub_gpu_reclaim.policy.guards import Guards
from jupyterhub_gpu_reclaim.policy.idle import IdlePolicy
from jupyterhub_gpu_reclaim.policy.nap import NapPolicy
from jupyterhub_gpu_reclaim.policy.pressure import PressurePolicy
from jupyterhub_gpu_reclaim.policy.rules import Rules
from jupyterhub_gpu_reclaim.service.settings.options import Options

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: Whatever has a section of its own in the service's settings, named like it.
PARTS: tuple[type[Configurable], ...] = (
    Guards,
    IdlePolicy,
    PressurePolicy,
    NapPolicy,
    Rules,
)
#: Every section of the service's settings, and whose traits they are.
SECTIONS: dict[str, tuple[type[HasTraits], ...]] = {
    "ReclaimService": (Options, Application),
    **{each.__name__: (each,) for each in PARTS},
    "HubOAuth": (HubOAuth,),
    "HubAuth": (HubOAuth,),
}
#: traitlets has these sections for every program; they are left to it.
_EVERYBODYS = {
    "Application",
    "Configurable",
    "LoggingConfigurable",
    "SingletonConfigurable",
}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(s|sec|m|min|h|d)\s*", re.IGNORECASE)
_UNITS = {"s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


def problems(config: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Mistakes in these settings, in sentences."""
    found: list[str] = []
    for section, values in config.items():
        if section in _EVERYBODYS:
            continue
        if section not in SECTIONS:
            found.append(
                f"{section} is not a section of settings{meant(section, SECTIONS)}"
            )
            continue
        for name, value in values.items():
            judged = _judged(section, name, value, SECTIONS[section])
            if isinstance(judged, str):
                found.append(judged)
    return found


def judged_value(owner: type[HasTraits], name: str, value: Any, called: str) -> str:
    """The mistake in a value for that trait of ``owner``; empty if there is none."""
    judged = _value(owner, owner.class_traits(config=True)[name], value, called)
    return judged if isinstance(judged, str) else ""


def meant(name: str, known: Iterable[str]) -> str:
    """The end of the sentence for an unknown name: similar names."""
    near = difflib.get_close_matches(name, list(known), 1, 0.6)
    return f"; did you mean {near[0]}?" if near else "."


# --- one value -----------------------------------------------------------------------


def _judged(
    section: str, name: str, value: Any, owners: tuple[type[HasTraits], ...]
) -> str | tuple[Any]:
    traits = {n: (o, t) for o in owners for n, t in o.class_traits(config=True).items()}
    if name not in traits:
        return f"{section}.{name} is not a setting{meant(name, traits)}"
    owner, trait = traits[name]
    return _value(owner, trait, value, f"{section}.{name}")


def _value(
    owner: type[HasTraits], trait: TraitType[Any, Any], value: Any, called: str
) -> str | tuple[Any]:
    """The value as the trait has it, in a tuple; or the sentence."""
    if isinstance(value, LazyConfigValue):
        return (value,)  # extends a default, which is not known here
    if (value is None and not trait.allow_none) or (
        isinstance(value, bool) and isinstance(trait, Float | Int)
    ):
        return f"{called} must be {_wanted(trait)}, not {value}."
    try:
        if isinstance(value, DeferredConfig):
            value = _read(trait, value)
        # Made without its __init__: a judgement starts nothing.
        bare: HasTraits = owner.__new__(owner)
        value = trait._validate(bare, value)  # noqa: SLF001 - what an assignment calls
    except (TraitError, ValueError, TypeError, SyntaxError) as error:
        return _wrong(trait, value, called, error)
    if isinstance(value, float) and not math.isfinite(value):
        return f"{called} must be {_wanted(trait)}, not {value}."
    return (value,)


def _read(trait: TraitType[Any, Any], words: Any) -> Any:
    """A value from a command line; traitlets' own ``get_value`` hides errors."""
    words = words if isinstance(words, list) else [words]
    if isinstance(trait, Container | Dict):
        return trait.from_string_list([str(word) for word in words])
    return trait.from_string(str(words[-1]))


def _wrong(
    trait: TraitType[Any, Any], value: Any, called: str, error: Exception
) -> str:
    if not isinstance(trait, Float | Int | Bool | Enum):
        # A validator of ours says it best, and repeats no secret; those of traitlets
        # repeat the value.
        own = isinstance(error, TraitError) and str(error).startswith(called)
        sentence = str(error) if own else f"{called} must be {_wanted(trait)}"
        return sentence.removesuffix(".") + "."
    shown = repr(str(value) if isinstance(value, DeferredConfig) else value)
    hint = ""
    if isinstance(trait, Float | Int):
        found = _DURATION.fullmatch(str(value))
        if found is not None:
            seconds = float(found[1]) * _UNITS[found[2].lower()]
            hint = f"; {found[0].strip()} is {seconds:g}"
    return f"{called} must be {_wanted(trait)}, not {shown[:80]}{hint}."


def _wanted(trait: TraitType[Any, Any]) -> str:
    if isinstance(trait, Enum):
        return "one of " + ", ".join(repr(each) for each in trait.values or ())
    if isinstance(trait, Bool):
        return "True or False"
    if not isinstance(trait, Float | Int):
        each = getattr(trait, "_trait", None)
        of = f", each {_wanted(each)}" if isinstance(each, Enum) else ""
        return f"{trait.info()}{of}"
    if trait.info_text not in {"a float", "an int"}:
        return str(trait.info_text)
    kind = "a whole number" if isinstance(trait, Int) else "a number"
    low = None if trait.min == -math.inf else trait.min
    high = None if trait.max == math.inf else trait.max
    if low is not None and high is not None:
        return f"{kind} from {low:g} to {high:g}"
    return f"{kind} of at least {low:g}" if low is not None else kind
