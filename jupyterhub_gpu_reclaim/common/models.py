"""The values that all parts share: sessions, phases, samples, checkpoints, progress.

Frozen values, checked when they are decoded (``msgspec``); no I/O and no decisions. As
JSON they are the wire format of all our APIs: see ``common/codec.py``. All times are
seconds since the epoch (UTC), all durations seconds, all sizes bytes.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar
from urllib.parse import quote

import msgspec

from jupyterhub_gpu_reclaim.common import text
from jupyterhub_gpu_reclaim.common.bounds import (
    Count,
    Identifier,
    Line,
    Moment,
    Name,
    Seconds,
    Size,
    UserId,
)


class Value(msgspec.Struct, frozen=True, forbid_unknown_fields=False, kw_only=True):
    """Base of all values: frozen, keyword-only; unknown fields are of newer parts."""


class SessionKey(msgspec.Struct, frozen=True, order=True):
    """One user's one server; ``str()`` is ``user/server`` (server may be empty)."""

    user: Name
    server: Name = ""

    def __str__(self) -> str:
        return f"{self.user}/{self.server}"

    @property
    def path(self) -> str:
        """The key as two segments of a URL's path."""
        # The default server is ``-``; a name of dashes alone gets one more of them.
        named = self.server if self.server.strip("-") else self.server + "-"
        return f"{quote(self.user, safe='')}/{quote(named, safe='')}"

    @classmethod
    def of_path(cls, user: str, server: str) -> SessionKey:
        """The key of two decoded segments of :attr:`path`."""
        return cls(user, server if server.strip("-") else server[:-1])


class Phase(StrEnum):
    """Phase of a session's life."""

    RUNNING = "running"
    NAPPING = "napping"  #: runs, but programs with a GPU are stopped without it
    WARNED = "warned"
    SUSPENDING = "suspending"
    RELEASING = "releasing"
    SUSPENDED = "suspended"
    RESUMING = "resuming"
    STOPPED = "stopped"

    @property
    def live(self) -> bool:
        """Whether the session runs, and nothing is done with it as a whole."""
        return self in {Phase.RUNNING, Phase.NAPPING, Phase.WARNED}

    @property
    def rests(self) -> bool:
        return self in {Phase.SUSPENDED, Phase.STOPPED}


class TreeState(StrEnum):
    """State of the processes of one incarnation, as far as its agent knows."""

    HOLDING = "holding"  #: only an init that waits for a tree
    RUNNING = "running"
    NAPPING = "napping"  #: programs with a GPU are stopped without it; others run
    CAPTURING = "capturing"
    CAPTURED = "captured"  #: committed; the tree is stopped but alive
    RESTORING = "restoring"
    UNKNOWN = "unknown"  #: there is a pod, and the agent of its node does not answer


class GpuSample(Value, frozen=True, kw_only=True):
    """Use of one card by one session."""

    uuid: Line
    name: Line = ""
    memory: Size | None = None  #: bytes
    sm_percent: float | None = None  #: of the time since the last sample

    @property
    def model(self) -> str:
        return self.name.removeprefix("NVIDIA ") or "GPU"


class KernelSample(Value, frozen=True, kw_only=True):
    """One Jupyter kernel, as reported by the session's own server."""

    id: str
    name: str  #: notebook path where one is known, else the kernel's name
    execution_state: str  #: idle, busy, starting, …; or "unknown"
    last_activity: float
    connections: int = 0
    #: since when its cell waits for an answer (``input()``, a debugger's prompt); None:
    #: it does not, or its server has no extension of ours to tell
    prompt_since: float | None = None


class TerminalSample(Value, frozen=True, kw_only=True):
    """One terminal of the Jupyter server."""

    name: str
    last_input: float | None  #: time of the last input (atime of the tty)


class Sample(Value, frozen=True, kw_only=True):
    """Activity of one session at one moment. ``None`` means not known, never zero."""

    incarnation: str
    key: SessionKey
    at: float
    memory: int | None = None  #: resident bytes of the tree, but what it shares
    #: CPU seconds consumed so far by all but a Jupyter server
    cpu_work: float | None = None
    written: int | None = None  #: bytes written so far by all of them
    #: bytes that its server was sent and has sent, and that its programs exchanged with
    #: other machines, while it was sampled
    moved: int | None = None
    #: bytes that pages behind the server have sent to its programs, likewise
    paged: int | None = None
    #: other machines that its programs are connected to, or from: addresses and ports
    outside: list[str] | None = None
    kernels: list[KernelSample] | None = None
    terminals: list[TerminalSample] | None = None
    #: time of the last input to a terminal that is not the server's own
    last_typed: float | None = None
    connections: int | None = None
    #: newest save of a notebook that is open, or change of a file through its server
    last_saved: float | None = None
    #: last change that a person has asked a page of its server for
    last_asked: float | None = None
    started: float | None = None  #: when the tree was started or restored
    gpus: list[GpuSample] | None = []  #: empty: none used, or none there
    #: seconds after which its server ends idle kernels, or itself; None: it does not
    culls_after: float | None = None
    #: when its scheduler's next job is due; 0: none is; None: not known
    job_due: float | None = None
    problem: str = ""  #: why something is not known, for the log and the page
    #: whether its server has Jupyter's API; without, there are no kernels to be seen
    jupyter: bool = True
    pod: str = ""  #: uid of the pod that it was taken in; empty outside of Kubernetes


class Usage(Value, frozen=True, kw_only=True):
    """Samples of one session, summed up over a window; ``None``: not known."""

    at: float
    watched: float  #: how long the window reaches back, without a gap
    sample_age: float  #: age of the newest sample
    last_active: float | None
    last_active_what: str = ""
    busy_kernel: str | None = None  #: one whose cell runs without waiting for input
    unknown_kernel: str | None = None
    prompt_kernel: str | None = None  #: whose cell was the last to ask for an answer
    prompt_since: float | None = None  #: and when that was
    cpu_percent: float | None = None  #: of one core, over the window
    gpu_percent: float | None = None  #: of its busiest card, over the window
    #: the same between two samples: the most of the window
    gpu_peak_percent: float | None = None
    #: bytes a second that it wrote, and that moved on its connections, over the window
    data_rate: float | None = None
    #: bytes a second that pages behind the server sent to programs: the most of it
    page_peak_rate: float | None = None
    #: the same of the quietest stretch of it: what they send by themselves
    page_quiet_rate: float | None = None
    gpu_memory: int | None = None
    memory: int | None = None
    connections: int | None = None
    #: other machines that its programs are connected to, or from: addresses and ports
    outside: list[str] | None = None
    kernels: int | None = None
    terminals: int | None = None
    jupyter: bool = True  #: whether its server tells of kernels and terminals
    culls_after: float | None = None  #: seconds until its server ends what is idle
    job_due: float | None = None  #: when its next scheduled job is due; 0: none is
    complete: bool = False  #: every field that a policy needs was there

    @property
    def held(self) -> int:
        """Bytes that it has in memory, of the host and of its GPUs, as far as known."""
        return (self.gpu_memory or 0) + (self.memory or 0)

    def used_at(self, at: float, what: str) -> Usage:
        """The same with a use at that time, if it is later than the last one."""
        if self.last_active is not None and self.last_active >= at:
            return self
        return msgspec.structs.replace(self, last_active=at, last_active_what=what)

    def used_since(self, at: float) -> bool:
        """Whether anything was used, as far as is known; a running cell counts."""
        active = self.last_active
        return self.busy_kernel is not None or active is None or active > at


class Decision(Value, frozen=True, kw_only=True):
    """A decision with its reason: a code and a sentence."""

    reclaim: bool
    code: str
    message: str
    #: when the verdict may become "reclaim", as far as can be known
    at: float | None = None


class Finding(Value, frozen=True, kw_only=True):
    """A result of preflight or of a compatibility check."""

    code: str
    message: str
    hint: str = ""
    fatal: bool = True
    retryable: bool = False


class Step(Value, frozen=True, kw_only=True):
    """Progress of an operation: one step, begun, under way or ended."""

    step: Line  #: stable name, e.g. ``dump``
    title: Line  #: what a user reads, e.g. "Saving the memory"
    state: Line = "begun"  #: begun, going, done, failed
    seconds: Seconds = 0.0
    bytes: Size = 0
    total_bytes: Size = 0


class Failure(Value, frozen=True, kw_only=True):
    """An error on the wire: the code, the sentence, and whether to retry."""

    code: str
    message: str
    hint: str = ""
    retryable: bool = False
    #: The programs that it is about, where they are not the session's own.
    incarnation: str = ""
    #: Of ``former_service``: the highest term that the agent has seen, in digits.
    term: str = ""
    #: When a session's end was, or an attempt that may go well another time; 0: not
    #: known.
    at: Moment = 0.0

    @property
    def told(self) -> str:
        """The sentence for later, when an attempt may succeed again."""
        if not (self.retryable and self.at):
            return self.message
        return f"The last attempt failed at {text.moment(self.at)}: {self.message}"


class Aside(Value, frozen=True, kw_only=True):
    """A person's word that a checkpoint is not what their session goes on from."""

    until: Moment | None  #: when it may be deleted; None: not by itself


class GoneOn(Value, frozen=True, kw_only=True):
    """A session came back from that checkpoint, and may be newer since."""

    incarnation: Identifier  #: what came back
    since: Moment


class Mark(Value, frozen=True, kw_only=True):
    """Remarks beside a checkpoint; none: it is the chosen one."""

    aside: Aside | None = None
    gone_on: GoneOn | None = None  #: that is a choice, too
    name: Name = ""  #: what a person calls it
    #: Number of the word before, which this one only adds a name to: no choice.
    adds_to: tuple[Count, Count] | None = None


#: A higher term was never any service's: each is one above a former one. Half of what
#: the journal's column holds, so that there is always a next one.
BELIEVED = (1 << 30) - 1


class CheckpointInfo(Value, frozen=True, kw_only=True):
    """Facts about a committed checkpoint, known without opening its contents."""

    id: Identifier
    key: SessionKey
    incarnation: Line
    #: Its number among those that one service has given out under that name.
    generation: Count
    created: Moment
    logical_bytes: Size  #: what the session held
    stored_bytes: Size  #: what was written for it
    deduplicated_bytes: Size = 0  #: what stood there already, of earlier generations
    #: Bytes that it keeps in the store, by the generation that has written them; empty:
    #: what was written for it is all.
    keeps: dict[str, Size] = {}
    frozen_seconds: Seconds = 0.0
    steps: list[Step] = []
    #: Checkpoint that this incarnation was restored from; empty: it was started cold.
    parent: Line = ""
    #: The cards that it used; empty: none, or unknown.
    gpus: list[GpuSample] = []
    #: Id of the session that it is of, and the account at the Hub that it belonged to;
    #: empty: not known.
    session: Line = ""
    account: Line = ""
    #: Of the service that ordered it (``common/term.py``); 0: none was heard of. One
    #: that is too high to be believed is listed all the same.
    term: Size = 0
    #: It is a save point: what was saved has gone on since, and may be newer.
    goes_on: bool = False
    #: Of a save point: files that its programs could write, and that it has not kept.
    not_kept: str = ""
    #: Of a save point: what a person calls it; the mark beside it has the last word.
    name: Name = ""
    #: What that mark says, where checkpoints are listed.
    aside: Aside | None = None
    gone_on: GoneOn | None = None
    #: Number of the last choice (term, word): the later one has the higher one; zeros:
    #: there is none.
    word: tuple[Count, Count] = (0, 0)

    def marked(self, said: Mark, number: tuple[int, int]) -> CheckpointInfo:
        """Return what a list tells of it where the mark of that number is beside it."""
        return msgspec.structs.replace(
            self,
            aside=said.aside,
            gone_on=said.gone_on,
            name=said.name,
            word=number if said.adds_to is None else said.adds_to,
        )

    @property
    def mark(self) -> Mark:
        return Mark(aside=self.aside, gone_on=self.gone_on, name=self.name)

    @property
    def stamp(self) -> tuple[int, int]:
        """The higher one is the newer state; no clock is involved."""
        return self.term if self.term <= BELIEVED else 0, self.generation


class KeptState(Value, frozen=True, kw_only=True):
    """One checkpoint of a session that the service keeps, and why."""

    id: Identifier
    generation: int
    created: float
    logical_bytes: int = 0
    stored_bytes: int = 0
    #: current (the session is suspended in it), superseded (it came back from it), or
    #: aside
    keeping: str
    name: str = ""  #: that a person has given it
    save_point: bool = False  #: the session has gone on since
    expires: float | None = None  #: when it is deleted; None: not by itself
    deletable: bool = False  #: nothing that is under way needs it


class Identity(Value, frozen=True, kw_only=True):
    """Facts that the spawner needs to resume a session under its old login.

    Held inside the checkpoint, never in the Hub's state nor in the journal.
    """

    api_token: str
    port: Count
    environment: dict[str, str] = {}
    uid: UserId = 0
    image: str = ""  #: of its container, by digest where that was known
    #: Labels of the node that it ran on and that the next one must have, too.
    node_labels: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"Identity({self.port})"


class Nap(Value, frozen=True, kw_only=True):
    """GPU memory that a nap has moved out of a session's cards."""

    begun: float
    gpus: list[GpuSample]  #: with the memory that its programs had there

    @property
    def bytes(self) -> int:
        return sum(gpu.memory or 0 for gpu in self.gpus)


class CardShortage(Value, frozen=True, kw_only=True):
    """Bytes that one wake needs of one card, and bytes that are free there for it."""

    uuid: str
    name: str = ""
    needed: int
    free: int


class Shortage(Value, frozen=True, kw_only=True):
    """Shortage of memory on its cards that a wake waits out."""

    waited: float  #: seconds, up to now
    place: int  #: among the wakes that want the same cards, from 1 on
    cards: list[
        CardShortage
    ]  #: those that have not enough, or where it is not its turn


class Tree(Value, frozen=True, kw_only=True):
    """One incarnation on a node, as its agent reports it."""

    incarnation: str
    key: SessionKey
    state: TreeState
    init_pid: int  #: host pid of the session's init; 0 when gone
    checkpoint: str = ""  #: of the capture or restore under way, or the last one
    origin: str = ""  #: the checkpoint that its programs were restored from, if known
    generation: int = 0
    operation: str = ""
    steps: list[Step] = []
    failure: Failure | None = None  #: how the last operation ended, if it failed
    pod: str = ""  #: uid of the pod that it was found in; empty outside of Kubernetes
    node: str = ""  #: name of its node, as the API server says; empty: this machine
    #: whether it is being killed, or its pod deleted: that cannot be undone
    ending: bool = False
    nap: Nap | None = None  #: its nap, if it has one and its agent tells of it
    shortage: Shortage | None = None  #: if it wakes, and waits for memory
    session: str = ""  #: id of the session, through all its returns; empty: not known
    account: str = ""  #: the account at the Hub that it belongs to; empty: not known
    #: of one that went back to a save point: the moment of that; 0: it did not
    as_of: float = 0.0
    #: folders in which files lie that are newer than that
    newer: list[str] = []

    @property
    def runs(self) -> bool:
        """Whether its server runs and answers; programs with a GPU may nap."""
        return self.state in {TreeState.RUNNING, TreeState.NAPPING}

    @property
    def frozen(self) -> bool:
        return self.state in {TreeState.CAPTURING, TreeState.CAPTURED}

    @property
    def lives(self) -> bool:
        """Whether its programs run, or are being captured, which may be undone."""
        return self.runs or self.state is TreeState.CAPTURING


_OfOne = TypeVar("_OfOne", Tree, CheckpointInfo)


def of_session(key: SessionKey | None, values: list[_OfOne]) -> list[_OfOne]:
    """Values of one session; without a key, all."""
    return [value for value in values if key in {None, value.key}]


class Event(Value, frozen=True, kw_only=True):
    """One line of an operation's stream (newline-delimited JSON).

    Exactly one of the fields is set: progress, or the end.
    """

    step: Step | None = None
    checkpoint: CheckpointInfo | None = None  #: capture ended well
    tree: Tree | None = None  #: any other order ended well
    failure: Failure | None = None


class HubState(StrEnum):
    """State of one server, as the Hub tells it."""

    RUNNING = "running"
    SPAWNING = "spawning"
    STOPPING = "stopping"
    STOPPED = "stopped"
    UNSETTLED = "unsettled"  #: being checked or renamed: nothing may be concluded


class Placement(Value, frozen=True, kw_only=True):
    """A restored or started session's place, reported by the spawner."""

    key: SessionKey
    incarnation: Identifier
    checkpoint: str = ""
    #: id of the session: of a start, the one that it has if it is a fresh one
    session: str = ""
    owner: str = ""  #: the user's account at the Hub, whatever its name; empty: unknown
    #: whether the Hub has not forgotten the session that was there: it may be saved
    remembered: bool = False
    #: of a start: the session that the Hub remembers there; empty: none
    former: str = ""
    #: with the generation: the stamp of what the Hub remembers; zeros: not known
    term: int = 0
    generation: int = 0
    #: why a start was cancelled, if only the spawner knows; how a session ended
    #: without a stop
    failure: Failure | None = None
    by: str = ""  #: who asked the Hub for a stop; empty if unknown
    culled: bool = False  #: whether that is a program that ends idle servers
    #: of a stop: whether a restarted Hub has looked, and not taken the server up (yet)
    checked: bool = False


class Suspension(Value, frozen=True, kw_only=True):
    """Facts about a suspended session that its user may want before it comes back."""

    at: Moment = 0.0  #: since when it is suspended
    why: str = ""  #: a sentence; empty: not recorded
    bytes: Size = 0  #: what it held
    until: Moment | None = None  #: when it is deleted for its age; None: never
    for_quota: bool = False  #: whether a quota may delete it
    #: with the generation: the stamp of its checkpoint; zeros: not known
    term: Count = 0
    generation: Count = 0


class StartPlan(Value, frozen=True, kw_only=True):
    """The service's answer to "how do I start this session?"."""

    action: str  #: cold, restore, adopt or refuse
    checkpoint: str = ""
    incarnation: str = ""  #: of the tree to adopt
    identity: Identity | None = None
    failure: Failure | None = None
    #: an administrator has ordered that a login which the Hub does not know be valid
    renew_login: bool = False
    #: whether the account that starts it is known to have started what is adopted
    owned: bool = False
    suspension: Suspension | None = None  #: of what is restored
    session: str = ""  #: id of what is restored or adopted; empty: not known


class StopPlan(Value, frozen=True, kw_only=True):
    """The service's answer to "may I end this session's programs?"."""

    action: str  #: stop (really) or release (it is captured)
    checkpoint: str = ""
    suspension: Suspension | None = None  #: of what is released


class Waiting(Value, frozen=True, kw_only=True):
    """A session that starts or resumes while no GPU is free."""

    key: SessionKey
    place: int = 0  #: in the queue, from 1 on
    since: float
    gpus: int = 1  #: that it waits for


class SessionPolicy(Value, frozen=True, kw_only=True, omit_defaults=True):
    """Settings of one session by rules; ``None``: no rule sets it."""

    idle_after: float | None = None
    warn_for: float | None = None
    nap_after: float | None = None
    save_every: float | None = None
    together: bool | None = None
    never: bool | None = None
    quiet_hours: list[str] | None = None
    min_age: float | None = None
    cool_down: float | None = None
    busy_cpu_percent: float | None = None
    busy_gpu_percent: float | None = None
    busy_data_rate: float | None = None
    page_data_rate: float | None = None
    prompt_idle_after: float | None = None
    connections_after: float | None = None
    connected_is_active: bool | None = None
    wake_for_jobs: str | None = None
    #: for each of these, the rule that says so; of those that ``IdlePolicy`` lets be
    #: None, a rule may set just that
    by: dict[str, str] = msgspec.field(default_factory=dict)
    unknown: str = ""  #: facts that are missing for a decision

    def rule(self, setting: str) -> str:
        """The end of a sentence about that setting: the rule, if there is one."""
        return f" by the rule for {self.by[setting]}" if setting in self.by else ""


class Resumed(Value, frozen=True, kw_only=True):
    """What a session's last return went back to."""

    as_of: float = 0.0  #: moment of the save point that it went back to; 0: of none
    newer: list[str] = []  #: folders in which files lie that are newer than that


class SessionFacts(Value, frozen=True, kw_only=True):
    """Further facts about a session; unset ones are left out."""

    opted_out_by: str = ""
    intent: str = ""  #: asked for and not yet done: suspend, resume, nap, wake, empty
    node: str = ""
    gpus_held: int = 0  #: now, or when it was saved
    resumed: Resumed | msgspec.UnsetType = msgspec.UNSET
    suspension: Suspension | msgspec.UnsetType = msgspec.UNSET  #: while it is suspended
    place: int | msgspec.UnsetType = msgspec.UNSET  #: in the GPU queue
    terms: SessionPolicy | msgspec.UnsetType = msgspec.UNSET
    nap: Nap | msgspec.UnsetType = msgspec.UNSET  #: also while it is warned
    #: when the memory of its GPU is expected to be back, while it is moved there
    waking_until: float | msgspec.UnsetType = msgspec.UNSET
    #: whether and why (not) it naps by itself; not while it naps
    nap_verdict: Decision | msgspec.UnsetType = msgspec.UNSET
    nap_failure: Failure | msgspec.UnsetType = msgspec.UNSET  #: of its last nap or wake
    wake_failed: bool | msgspec.UnsetType = msgspec.UNSET  #: it was a wake's


class AuditLine(Value, frozen=True, kw_only=True):
    """Line of the audit log: who did what to whose session, when and why."""

    id: int = 0  #: number in the journal; 0: not written yet
    at: float
    key: SessionKey
    who: str
    what: str  #: stable word of the audit for what happened
    code: str = ""  #: of the reason, where there is one
    message: str = ""
    sentence: str = ""  #: all of it, for people who read it


class SessionView(Value, frozen=True, kw_only=True):
    """A session as the API and the pages show it."""

    key: SessionKey
    phase: Phase
    since: float
    incarnation: str = ""
    generation: int = 0
    checkpoint: str = ""
    verdict: Decision | None = None
    usage: Usage | None = None
    gpus: list[GpuSample] = []  #: of the newest sample; empty where not known
    failure: Failure | None = None
    kept_until: float | None = None
    suspends_at: float | None = None
    steps: list[Step] = []
    last_suspend: CheckpointInfo | None = None
    #: all its checkpoints, the newest generation first
    kept: list[KeptState] = []
    facts: SessionFacts = SessionFacts()
