"""What happens in one run, drawn from its seed: acts of people, and faults.

A plan is a list, so that a failing run is shrunk by leaving out one line after the
other. All chance that is not in the plan (how long a call takes, which of many is lost)
comes from the seed as well.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from jupyterhub_gpu_reclaim.common.models import SessionKey

#: Seconds of simulated time in which people act and faults happen.
SPAN = 600.0

#: Seeds from here on have naps, drawn from a source of their own: what earlier ones
#: have found is found again.
NAPS_FROM = 510_000_000
#: Share of those that have none all the same.
NO_NAPS = 0.3
#: Seeds from here on have crowded cards, likewise, and their share: more sessions share
#: one card than have room on it, so that they nap for each other.
CROWDED_FROM, CROWDED = 900_000_000, 0.4
#: Their seconds of idleness: for a nap, and for a nap for another one.
CROWDED_NAP_AFTER, CROWDED_ROOM_AFTER = 170.0, 20.0

#: Seeds from here on have more returns with use and naps right after, likewise, and the
#: share of those.
RETURNING_FROM, RETURNING = 1_100_000_000, 0.7
#: What these have found, they had found before there were such.
NOT_RETURNING = frozenset({1_795_456_028_959, 1_848_806_109_096})

#: Seeds from here on have work of administrators, likewise, and the share of those.
OPERATED_FROM, OPERATED = 1_370_000_000, 0.6
NOT_OPERATED = NOT_RETURNING | {3_132_769_609_057}

#: Seeds from here on have restores of the Hub and its service together, likewise, and
#: the share of those.
RESTORED_FROM, RESTORED = 1_380_000_000, 0.3
NOT_RESTORED = NOT_OPERATED | {1_145_865_584_093}

#: Seeds from here on have rehearsals, and programs that cannot come back, likewise, and
#: the share of those.
STUCK_FROM, STUCK = 1_400_000_000, 0.3
NOT_STUCK = NOT_RESTORED

#: Seeds from here on have a store that is not mounted for a while, likewise, and the
#: share of those.
UNMOUNTED_FROM, UNMOUNTED = 1_420_000_000, 0.3
NOT_UNMOUNTED = NOT_STUCK

#: Seeds from here on have orders of former services, likewise, and the share of those.
FORMER_FROM, FORMER, GIVEN_UP = 3_000_000_000, 0.3, 0.5
NOT_FORMER = NOT_UNMOUNTED

#: Seeds from here on have save points, likewise, and the share of those.
SAVED_FROM, SAVED = 9_000_000_000, 0.4

#: Seeds from here on have drains of machines, likewise, and the share of those.
DRAINED_FROM, DRAINED = 10_000_000_000, 0.4

#: Of seeds from here on, that share are dense: one session, for which what is kept, put
#: back and interrupted comes in quick succession, and which ends at last.
DENSE_FROM, DENSE = 12_000_000_000, 0.5
NOT_DENSE = frozenset({506_018_170_025, 3_004_906_110_099})

#: Share of events that come soon after another one, and how soon, in seconds.
NEAR, SOON = 0.6, 12.0

#: Acts of people, with their weights.
ACTS = {
    "visit": 10,
    "work": 8,
    "suspend": 8,
    "resume": 3,
    "stop": 2,
    "start fresh": 1,
    "discard": 1,
    "keep": 1,
    "delete": 1,
    "bring back": 1,
    "reload": 2,
}
#: Acts around naps, with their weights; "write" is a message that nobody waits for.
NAPS = {"nap": 8, "wake": 3, "write": 5}
#: Faults in the middle of them, with their weights, and how often there is one.
NAP_FAULTS = {
    "CRIU and the driver fail": 4,
    "the agent is killed": 4,
    "the service is killed": 3,
    "others take the GPU": 2,
    "calls are lost": 2,
    "the state folder is full": 1,
    "the agent is gone for good": 1,
}
NAP_FAULTED = 0.4
#: What comes soon after the order for a save point, with their weights.
SAVE_ACTS = {"work": 5, "save": 2, "suspend": 2, "visit": 2, "stop": 1}
SAVE_FAULTS = {
    "the tree dies": 4,
    "the machine loses power": 2,
    "the agent is killed": 3,
    "the service is killed": 3,
    "the agent is gone for good": 1,
    "the journal is lost": 1,
    "CRIU and the driver fail": 1,
    "the store is full": 1,
    "the store is away": 1,
}
#: What people do while their machine is drained, with their weights.
DRAIN_ACTS = {"visit": 5, "work": 3, "resume": 3, "keep": 1, "stop": 1, "save": 1}
#: What happens in a dense plan, step by step: each table with the share of rounds that
#: draw from it, and how soon the next one comes, in seconds.
DENSE_ACTS = {
    "suspend": 8,
    "visit": 6,
    "work": 4,
    "resume": 3,
    "save": 3,
    "drain in time": 1,
    "start fresh": 1,
    "bring back": 1,
    "nap": 1,
    "stop": 1,
}
BACKUPS = {
    "both databases are backed up": 3,
    "the journal is backed up": 2,
    "the Hub's database is backed up": 1,
}
PUT_BACK = {
    "both databases are put back": 4,
    "the journal is put back": 3,
    "the Hub's database is put back": 1,
    "the journal is lost": 1,
}
CUTS = {
    "the service is killed": 4,
    "the agent is killed": 3,
    "the Hub is killed": 3,
    "the machine is cut off": 2,
    "calls are late": 2,
    "calls are lost": 2,
    "the store is away": 1,
    "a second service starts": 1,
    "the service is paused": 1,
}
DENSE_ENDS = {
    "the tree dies": 3,
    "the machine loses power": 3,
    "the agent is gone for good": 1,
    "the machine is gone for a while": 1,
    "stop": 1,
}
DENSE_ROUND = (
    (DENSE_ACTS, 1.0, 12.0),
    (BACKUPS, 0.4, 12.0),
    (DENSE_ACTS, 0.7, 12.0),
    (CUTS, 0.35, 6.0),
    (DENSE_ACTS, 0.6, 12.0),
    (PUT_BACK, 0.4, 4.0),
    (CUTS, 0.35, 6.0),
    (DENSE_ACTS, 0.5, 60.0),
)
#: Seconds from one round to the next: longer than the time of grace, too.
DENSE_PAUSES = (0.0, 20.0, 130.0)
#: Share of dense plans in which it ends, after so many seconds at most.
DENSE_ENDED, DENSE_END = 0.7, 130.0
#: What administrators do to many sessions, or to an account, with their weights.
OPERATIONS = {"drain": 3, "rename": 3, "the service is killed": 3}
#: Faults, with their weights.
FAULTS = {
    "the service is killed": 6,
    "the agent is killed": 6,
    "the Hub is killed": 4,
    "calls are lost": 3,
    "calls arrive twice": 2,
    "calls are late": 2,
    "the machine is cut off": 2,
    "the store is away": 3,
    "the store fails now and then": 3,
    "deletions fail after they were done": 1,
    "the store is slow": 2,
    "the store is full": 1,
    "the state folder is full": 2,
    "the journal's disk is full": 1,
    "the journal is backed up": 2,
    "the journal is put back": 3,
    "the journal is lost": 2,
    "the Hub's database is backed up": 1,
    "the Hub's database is put back": 1,
    "a second service starts": 2,
    "the service is paused": 2,
    "others take the GPU": 2,
    "the tree dies": 2,
    "the tree is woken": 2,
    "the machine loses power": 2,
    "CRIU and the driver fail": 2,
    "the clock jumps": 1,
    "the settings change": 1,
    "the machine is gone for a while": 2,
    "the agent is gone for good": 1,
    "the API server is away": 1,
}


@dataclass(frozen=True)
class Event:
    at: float
    what: str
    key: SessionKey | None = None
    #: what it needs further, drawn once: how long, how many, which
    share: float = 0.0
    count: int = 0

    def __str__(self) -> str:
        who = f" ({self.key})" if self.key else ""
        return f"at {self.at:6.1f} s: {self.what}{who}"


@dataclass(frozen=True)
class Plan:
    seed: int
    keys: tuple[SessionKey, ...]
    events: tuple[Event, ...] = field(default=())
    nodes: int = 0  #: of a cluster; 0: everything is on the Hub's machine
    naps: bool = False  #: whether sessions nap: by orders, and by policy
    nap_after: float = 0.0  #: seconds of idleness after which they do; 0: by orders
    crowded: bool = False  #: whether more sessions share a card than have room on it
    rehearsed: bool = False  #: whether a return is tried before a session is ended

    def without(self, index: int) -> Plan:
        events = self.events[:index] + self.events[index + 1 :]
        return replace(self, events=events)


def draw(seed: int) -> Plan:
    rng = random.Random(f"dense {seed}")
    is_dense = seed >= DENSE_FROM and seed not in NOT_DENSE
    if is_dense and rng.random() < DENSE:
        return _dense(rng, seed)
    rng = random.Random(f"plan {seed}")
    names = ["ada", "bob", "eve"][: rng.choice([1, 1, 2, 3])]
    keys = tuple(SessionKey(name) for name in names)
    events = [Event(rng.uniform(0.0, 5.0), "visit", key) for key in keys]
    acts, faults = _some(rng, ACTS, 0.8), _some(rng, FAULTS, 0.4)
    for table, least, most in ((acts, 8, 20), (faults, 1, 12)):
        for _ in range(rng.randint(least, most)):
            at = _moment(rng, events)
            events.append(_draw(rng, table, rng.choice(keys), at))
    nodes = rng.choice([0, 0, 2, 3])
    drawn = Plan(seed, keys, _in_order(events), nodes=nodes)
    drawn = _with_naps(drawn) if seed >= NAPS_FROM else drawn
    drawn = _crowded(drawn) if seed >= CROWDED_FROM else drawn
    returning = seed >= RETURNING_FROM and seed not in NOT_RETURNING
    drawn = _returning(drawn) if returning else drawn
    operated = seed >= OPERATED_FROM and seed not in NOT_OPERATED
    drawn = _operated(drawn) if operated else drawn
    restored = seed >= RESTORED_FROM and seed not in NOT_RESTORED
    drawn = _restored(drawn) if restored else drawn
    stuck = seed >= STUCK_FROM and seed not in NOT_STUCK
    drawn = _stuck(drawn) if stuck else drawn
    unmounted = seed >= UNMOUNTED_FROM and seed not in NOT_UNMOUNTED
    drawn = _unmounted(drawn) if unmounted else drawn
    former = seed >= FORMER_FROM and seed not in NOT_FORMER
    drawn = _former(drawn) if former else drawn
    drawn = _saved(drawn) if seed >= SAVED_FROM else drawn
    return _drained(drawn) if seed >= DRAINED_FROM else drawn


def _dense(rng: random.Random, seed: int) -> Plan:
    """A short plan in which what may meet does meet."""
    key = SessionKey("ada")
    events, at = [Event(rng.uniform(0.0, 5.0), "visit", key)], rng.uniform(10.0, 60.0)
    for _ in range(rng.randint(2, 4)):
        for table, share, soon in DENSE_ROUND:
            if rng.random() < share:
                events.append(_draw(rng, table, key, min(SPAN, at)))
                at += rng.uniform(0.0, soon)
        at += rng.choice(DENSE_PAUSES)
    if rng.random() < DENSE_ENDED:
        at = min(SPAN, at + rng.uniform(0.0, DENSE_END))
        events.append(_draw(rng, DENSE_ENDS, key, at))
    nodes = rng.choice([0, 0, 2])
    return Plan(seed, (key,), _in_order(events), nodes=nodes, naps=True, rehearsed=True)


def _drained(plan: Plan) -> Plan:
    """The same plan, sometimes with drains, and what comes in between."""
    rng = random.Random(f"drains {plan.seed}")
    if rng.random() >= DRAINED:
        return plan
    events = list(plan.events)
    for _ in range(rng.randint(1, 3)):
        at, key = rng.uniform(20.0, SPAN), rng.choice(plan.keys)
        events.append(_draw(rng, {"drain in time": 1}, key, at))
        for what in (DRAIN_ACTS, FAULTS, DRAIN_ACTS):
            if rng.random() < NEAR:
                at = min(SPAN, at + rng.uniform(0.0, SOON))
                events.append(_draw(rng, what, rng.choice(plan.keys), at))
    return replace(plan, events=_in_order(events))


def _saved(plan: Plan) -> Plan:
    """The same plan, sometimes with save points, and what comes in between or after."""
    rng = random.Random(f"saves {plan.seed}")
    if rng.random() >= SAVED:
        return plan
    events = list(plan.events)
    for _ in range(rng.randint(1, 6)):
        at, key = rng.uniform(20.0, SPAN), rng.choice(plan.keys)
        events.append(_draw(rng, {"save": 1}, key, at))
        for what in (SAVE_ACTS, SAVE_FAULTS, SAVE_ACTS):
            if rng.random() < NEAR:
                at = min(SPAN, at + rng.uniform(0.0, SOON))
                events.append(_draw(rng, what, key, at))
    return replace(plan, events=_in_order(events))


def _former(plan: Plan) -> Plan:
    """The same plan, sometimes with orders that arrive when another service works."""
    rng = random.Random(f"former {plan.seed}")
    if rng.random() >= FORMER:
        return plan
    events = list(plan.events)
    late = "a former service's orders are late"
    for _ in range(rng.randint(1, 4)):
        at, key = _moment(rng, events), rng.choice(plan.keys)
        events.append(_draw(rng, {late: 1}, key, at))
        for acts in ({"visit": 3, "the Hub is killed": 2, "delete": 1}, {"visit": 1}):
            at = min(SPAN, at + rng.uniform(0.0, 2 * SOON))
            events.append(_draw(rng, acts, key, at))
    if rng.random() < GIVEN_UP:
        # A return is given up, the order to end it held up, and Hub and service end
        # before they have tidied up. What came back runs; its user comes by, and works.
        at, key = rng.uniform(20.0, SPAN - 120.0), rng.choice(plan.keys)
        events.append(_draw(rng, {"suspend": 1}, key, at))
        at += 40.0
        events.append(_draw(rng, {"visit": 1}, key, at))
        at += rng.uniform(1.0, 4.0)
        for what in (late, "a return is called off", "the Hub is killed"):
            # At once: the spawner ends what comes back if the service is slow to.
            events.append(replace(_draw(rng, {what: 1}, key, at), share=0.9, count=1))
            at += rng.uniform(0.1, 0.25)
        at += rng.uniform(15.0, 35.0)
        for what in ("visit", "work", "work", "work"):
            events.append(_draw(rng, {what: 1}, key, at))
            at += rng.uniform(1.0, 6.0)
    return replace(plan, events=_in_order(events))


def _unmounted(plan: Plan) -> Plan:
    """The same plan, sometimes with a store that is not mounted for a while."""
    rng = random.Random(f"unmounted {plan.seed}")
    if rng.random() >= UNMOUNTED:
        return plan
    events = list(plan.events)
    for _ in range(rng.randint(1, 3)):
        at, key = _moment(rng, events), rng.choice(plan.keys)
        events.append(_draw(rng, {"the store is unmounted": 1}, key, at))
        for acts in ({"suspend": 3, "visit": 3, "stop": 1}, {"visit": 1}):
            at = min(SPAN, at + rng.uniform(0.0, SOON))
            events.append(_draw(rng, acts, key, at))
    return replace(plan, events=_in_order(events))


def _stuck(plan: Plan) -> Plan:
    """The same plan with rehearsals, sometimes with programs that cannot come back.

    Most times somebody orders a suspend then. Some of them end by and by.
    """
    rng, plan = random.Random(f"stuck {plan.seed}"), replace(plan, rehearsed=True)
    if rng.random() >= STUCK:
        return plan
    events = list(plan.events)
    for _ in range(rng.randint(1, 4)):
        at, key = rng.uniform(20.0, SPAN), rng.choice(plan.keys)
        events.append(_draw(rng, {"begin what cannot come back": 1}, key, at))
        for what in ("suspend", "end what cannot come back", "suspend"):
            at = min(SPAN, at + rng.uniform(0.0, 4 * SOON))
            if rng.random() < NEAR:
                events.append(_draw(rng, {what: 1}, key, at))
    return replace(plan, events=_in_order(events))


def _restored(plan: Plan) -> Plan:
    """The same plan, sometimes with a backup of both databases that is put back.

    Nobody is renamed afterwards: of a session that was begun after the backup, nothing
    tells whose it is but its name (``docs/explanation/track-record.md``).
    """
    rng = random.Random(f"restores {plan.seed}")
    if rng.random() >= RESTORED:
        return plan
    events = list(plan.events)
    backed_up = _moment(rng, events)
    events = [each for each in events if each.what != "rename" or each.at < backed_up]
    for what, at in (
        ("both databases are backed up", backed_up),
        ("both databases are put back", max(backed_up, _moment(rng, events))),
    ):
        events.append(_draw(rng, {what: 1}, rng.choice(plan.keys), at))
    return replace(plan, events=_in_order(events))


def _operated(plan: Plan) -> Plan:
    """The same plan, most times with some work of administrators in it."""
    rng = random.Random(f"operations {plan.seed}")
    if rng.random() >= OPERATED:
        return plan
    events = list(plan.events)
    for _ in range(rng.randint(1, 5)):
        at = _moment(rng, events)
        events.append(_draw(rng, OPERATIONS, rng.choice(plan.keys), at))
    return replace(plan, events=_in_order(events))


def _returning(plan: Plan) -> Plan:
    """The same plan, most times with more returns, of sessions that nap."""
    rng = random.Random(f"lazy {plan.seed}")
    if rng.random() >= RETURNING:
        return plan
    events = list(plan.events)
    for _ in range(rng.randint(2, 8)):
        at, key = rng.uniform(20.0, SPAN), rng.choice(plan.keys)
        events.append(_draw(rng, {"suspend": 1}, key, at))
        at = min(SPAN, at + rng.uniform(0.0, 2 * SOON))
        events.append(_draw(rng, {"visit": 3, "resume": 1}, key, at))
        at = min(SPAN, at + rng.uniform(0.0, SOON))
        events.append(_draw(rng, {"write": 4, "suspend": 2, "wake": 1}, key, at))
        if rng.random() < NAP_FAULTED:
            at = min(SPAN, at + rng.uniform(-SOON, 4.0))
            events.append(_draw(rng, NAP_FAULTS, key, at))
    return replace(plan, events=_in_order(events), naps=True)


def _crowded(plan: Plan) -> Plan:
    """The same plan, sometimes with four sessions on one card, which wake and nap."""
    rng = random.Random(f"room {plan.seed}")
    if rng.random() >= CROWDED:
        return plan
    keys = tuple(SessionKey(name) for name in ("ada", "bob", "eve", "zoe"))
    events = list(plan.events)
    more = keys[len(plan.keys) :]
    events += [Event(rng.uniform(0.0, 5.0), "visit", key) for key in more]
    for _ in range(rng.randint(15, 40)):
        at = rng.uniform(20.0, SPAN)
        events.append(_draw(rng, {"write": 5, "nap": 1}, rng.choice(keys), at))
    return replace(
        plan,
        keys=keys,
        events=_in_order(events),
        nodes=0,
        naps=True,
        nap_after=CROWDED_NAP_AFTER,
        crowded=True,
    )


def _with_naps(plan: Plan) -> Plan:
    """The same plan, most times with naps in it."""
    rng = random.Random(f"naps {plan.seed}")
    if rng.random() < NO_NAPS:
        return plan
    events = list(plan.events)
    for _ in range(rng.randint(2, 10)):
        at = _moment(rng, events)
        key = rng.choice(plan.keys)
        events.append(_draw(rng, NAPS, key, at))
        if rng.random() < NAP_FAULTED:
            at = min(SPAN, at + rng.uniform(-1.0, 4.0))
            events.append(_draw(rng, NAP_FAULTS, key, at))
    after = rng.choice([0.0, 0.0, 60.0])
    return replace(plan, events=_in_order(events), naps=True, nap_after=after)


def _in_order(events: list[Event]) -> tuple[Event, ...]:
    return tuple(sorted(events, key=lambda event: event.at))


def _some(rng: random.Random, table: dict[str, int], share: float) -> dict[str, int]:
    """A part of the table: what each run leaves out lets the rest meet more often."""
    return {what: n for what, n in table.items() if rng.random() < share} or table


def _moment(rng: random.Random, events: list[Event]) -> float:
    """Any one; mostly soon after an event: things go wrong while something happens."""
    at = rng.uniform(20.0, SPAN)
    if rng.random() < NEAR:
        at = min(SPAN, rng.choice(events).at + rng.uniform(0.0, SOON))
    return at


def _draw(
    rng: random.Random, table: dict[str, int], key: SessionKey, at: float
) -> Event:
    what = rng.choices(list(table), list(table.values()))[0]
    return Event(at, what, key, rng.random(), int(rng.expovariate(0.05)) + 1)
