"""Checks settings before anything acts on them: names, types and bounds.

It returns sentences for an administrator and raises nothing. A value is repeated only
if it cannot be a secret, that is, if a number or a choice was expected.
"""

from __future__ import annotations

import difflib
import math
from typing import TYPE_CHECKING, Any

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

from jupyterhub_gpu_reclaim.common.traits import Amount
from jupyterhub_gpu_reclaim.policy.guards import Guards
from jupyterhub_gpu_reclaim.policy.idle import IdlePolicy
from jupyterhub_gpu_reclaim.policy.nap import NapPolicy
from jupyterhub_gpu_reclaim.policy.pressure import PressurePolicy
from jupyterhub_gpu_reclaim.policy.rules import Rules
from jupyterhub_gpu_reclaim.service.settings.options import Options

if TYPE_CHECKING:
    from collections.abc import Iterable

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
}


def judged_value(owner: type[HasTraits], name: str, value: Any, called: str) -> str:
    """The mistake in a value for that trait of ``owner``; empty if there is none."""
    trait = owner.class_traits(config=True)[name]
    if isinstance(value, LazyConfigValue):
        return ""  # extends a default, which is not known here
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
    return ""


def meant(name: str, known: Iterable[str]) -> str:
    """The end of the sentence for an unknown name: similar names."""
    near = difflib.get_close_matches(name, list(known), 1, 0.6)
    return f"; did you mean {near[0]}?" if near else "."


# --- parts ----------------------------------------------------------------------


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
    return f"{called} must be {_wanted(trait)}, not {shown[:80]}."


def _wanted(trait: TraitType[Any, Any]) -> str:
    if isinstance(trait, Enum):
        return "one of " + ", ".join(repr(each) for each in trait.values or ())
    if isinstance(trait, Bool):
        return "True or False"
    if not isinstance(trait, Float | Int):
        each = getattr(trait, "_trait", None)
        of = f", each {_wanted(each)}" if isinstance(each, Enum) else ""
        return f"{trait.info()}{of}"
    if trait.info_text not in {"a float", "an int", Amount.info_text}:
        return str(trait.info_text)
    kind = "a whole number" if isinstance(trait, Int) else "a number"
    low = None if trait.min == -math.inf else trait.min
    high = None if trait.max == math.inf else trait.max
    if low is not None and high is not None:
        return f"{kind} from {low:g} to {high:g}"
    return f"{kind} of at least {low:g}" if low is not None else kind
