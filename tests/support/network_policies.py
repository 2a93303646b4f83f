"""Whether network policies let one pod reach another, as a plugin would decide it.

After https://kubernetes.io/docs/concepts/services-networking/network-policies: a pod
that no policy selects for a direction is open in that direction; else what any of those
policies names gets through, and nothing else. No address blocks. Nothing is enforced by
this: it tells what policies mean.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Party:
    """A pod, as policies see it."""

    namespace: str
    labels: Mapping[str, str]
    ports: Mapping[str, int] = field(default_factory=dict)

    @property
    def surroundings(self) -> dict[str, str]:
        """Labels of its namespace: the one that every namespace has."""
        return {"kubernetes.io/metadata.name": self.namespace}


def reaches(
    policies: Iterable[Mapping[str, Any]], source: Party, target: Party, port: int
) -> bool:
    """Whether a connection to that TCP port gets through."""
    policies = list(policies)
    out = _judged(policies, "Egress", source, target, target, port)
    return out and _judged(policies, "Ingress", target, source, target, port)


def _judged(
    policies: list[Mapping[str, Any]],
    direction: str,
    selected: Party,
    other: Party,
    listener: Party,
    port: int,
) -> bool:
    mine = [one for one in policies if _selects(one, direction, selected)]
    peers = {"Ingress": "from", "Egress": "to"}[direction]
    return not mine or any(
        _named(rule.get(peers), other, policy["metadata"]["namespace"])
        and _open(rule.get("ports"), listener, port)
        for policy in mine
        for rule in policy["spec"].get(direction.lower()) or ()
    )


def _selects(policy: Mapping[str, Any], direction: str, party: Party) -> bool:
    spec = policy["spec"]
    kinds = spec.get("policyTypes") or [
        "Ingress",
        *(["Egress"] if "egress" in spec else []),
    ]
    return (
        policy["metadata"]["namespace"] == party.namespace
        and direction in kinds
        and _matches(spec.get("podSelector") or {}, party.labels)
    )


def _named(peers: list[Mapping[str, Any]] | None, party: Party, home: str) -> bool:
    """Whether a rule names that party; one without peers names everybody."""
    return not peers or any(_is_peer(peer, party, home) for peer in peers)


def _is_peer(peer: Mapping[str, Any], party: Party, home: str) -> bool:
    if "ipBlock" in peer:
        raise NotImplementedError("address blocks")
    there = party.namespace == home
    if "namespaceSelector" in peer:
        there = _matches(peer["namespaceSelector"], party.surroundings)
    return there and _matches(peer.get("podSelector") or {}, party.labels)


def _matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    if set(selector) - {"matchLabels"}:
        raise NotImplementedError(str(selector))
    return (selector.get("matchLabels") or {}).items() <= labels.items()


def _open(ports: list[Mapping[str, Any]] | None, listener: Party, port: int) -> bool:
    """Whether a rule names that port, by number or name; one without any names all."""
    if not ports:
        return True
    for each in ports:
        named = each.get("port", port)
        number = listener.ports.get(named) if isinstance(named, str) else named
        if each.get("protocol", "TCP") == "TCP" and number == port:
            return True
    return False
