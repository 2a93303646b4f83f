"""The limits of the control plane, each with its unit and its reason.

The service makes them from its traits, which document them to administrators.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from jupyterhub_gpu_reclaim.policy.retention import Retention


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The limits; all durations in seconds."""

    #: Interval between two questions to the agent about what the sessions do.
    sample_interval: float = 10.0
    #: Interval of comparing journal, agent and Hub, even if nothing was heard.
    tick_interval: float = 10.0
    #: Time for which a session is shown as about to be suspended; 0: at once.
    warn_for: float = 60.0
    #: Time after an answered resume for which the checkpoint it came from is kept.
    grace: float = 600.0
    #: Time for which "start fresh" keeps the checkpoint.
    set_aside: float = 7 * 86400.0
    #: Time for which the audit lines of a session are kept.
    audit: float = 365 * 86400.0
    #: Time before its deletion at which a checkpoint is announced: a day to save it.
    forewarn: float = 24 * 3600.0
    #: The administrator's limits for checkpoints.
    retention: Retention = field(default_factory=Retention)
    #: Time for which an odd state must last before anything is ended for it.
    orphan_grace: float = 120.0
    #: Time for which a captured tree stays frozen while the Hub does not take the stop,
    #: or a server that belongs to it is not saved; then it is thawed.
    release_limit: float = 300.0
    #: Time for which a start or a stop waits for a suspend that is under way.
    settle_limit: float = 120.0
    #: Longest time of a whole capture or restore; the agent limits each step.
    operation_limit: float = 3600.0
    #: Time for which a resume waits for memory of a GPU on its machine; 0: not at all.
    gpu_wait: float = 300.0
    #: Number of sessions that share one GPU.
    seats_per_gpu: int = 1
    #: Longest "keep" that a user may ask for.
    keep_limit: float = 7 * 86400.0
    #: Time since its last save point after which a session that was used since is saved
    #: again, while it goes on; 0: only by order.
    save_every: float = 0.0
    #: Number of save points of a session that are kept while it runs; those with a name
    #: are kept besides.
    save_points: int = 1
    #: ``IdlePolicy.wake_for_jobs``, where no rule says otherwise.
    wake_for_jobs: str = "never"
    #: Whether a session that was ended by the cluster comes back by itself as at its
    #: last save point; else its user is asked.
    return_disrupted: bool = False
    #: Wait after a failed suspend or save, doubled by each failure in a row; its bound.
    backoff: float = 60.0
    backoff_limit: float = 3600.0
    #: Time between two looks at something that is under way.
    pace: float = 1.0
    #: Captures at the same time (they share the store's bandwidth); of a drain, on each
    #: node.
    captures: int = 2
    #: Sessions worked on at the same time.
    workers: int = 16

    def pause_after(self, failures: int) -> float:
        wait = self.backoff * 2.0 ** min(max(failures - 1, 0), 32)
        return min(wait, self.backoff_limit)
