"""Settings of how long checkpoints are kept, and how many.

A part of the service's settings (``options.py``).
"""

from __future__ import annotations

from traitlets import Bool, Float, Int
from traitlets.config import Configurable

from jupyterhub_gpu_reclaim.controlplane.model.settings import Settings
from jupyterhub_gpu_reclaim.policy.retention import Retention

_DEFAULTS = Settings()
_DAY = 86400.0
_GB = 10**9


class StoreOptions(Configurable):
    """Retention of checkpoints; mixed into the service's settings."""

    grace = Float(
        _DEFAULTS.grace,
        min=0,
        help="Seconds for which a checkpoint is kept after its session has come back"
        " and answered. Longer is safer and takes room in the store. 0: deleted as"
        " soon as it has answered.",
    ).tag(config=True)

    set_aside_days = Float(
        _DEFAULTS.set_aside / _DAY,
        min=0,
        help="Days for which a suspended session is kept after its user chose to start"
        " fresh. 0: deleted at once.",
    ).tag(config=True)

    audit_days = Float(
        _DEFAULTS.audit / _DAY,
        min=1,
        help="Days for which the journal keeps who did what to a session, and why it"
        " was suspended. Older lines are deleted, all but the newest of all; they hold"
        " names of users.",
    ).tag(config=True)

    keep_generations = Int(
        0,
        min=0,
        help="How many checkpoints of one session are kept, the newest first; what"
        " its users have put aside counts. 0: any number.",
    ).tag(config=True)

    keep_days = Float(
        0.0,
        min=0,
        help="Days after which what somebody has put aside is deleted, even if"
        " `set_aside_days` is longer; with `retention_takes_suspended`, suspended"
        " sessions too. 0: no limit.",
    ).tag(config=True)

    user_quota_gb = Float(
        0.0,
        min=0,
        help="Gigabytes (10^9 bytes) that the checkpoints of one user may take in the"
        " store. Above it the least recently suspended are deleted, first of those"
        " that were put aside. A suspend is never refused for it. 0: no limit.",
    ).tag(config=True)

    total_quota_gb = Float(
        0.0,
        min=0,
        help="The same for all users together. 0: no limit.",
    ).tag(config=True)

    tell_deletion_hours = Float(
        _DEFAULTS.forewarn / 3600,
        min=0,
        max=24 * 366,
        help="Hours before a checkpoint is deleted for its age at which its"
        " user is told, in the session's history and by `Notices`. What is kept for"
        " less is not told of, nor what a quota takes. 0: nobody is told.",
    ).tag(config=True)

    retention_takes_suspended = Bool(
        False,
        help="Whether `keep_days` and the quotas may delete the only checkpoint of a"
        " suspended session, that is, somebody's work; the user is told why, and the"
        " next start is a new one. False: what is suspended is kept, whatever a quota"
        " says.",
    ).tag(config=True)

    def retention(self) -> Retention:
        """The limits for ``policy/retention.py``."""
        return Retention(
            generations=self.keep_generations,
            seconds=self.keep_days * _DAY,
            user_bytes=int(self.user_quota_gb * _GB),
            total_bytes=int(self.total_quota_gb * _GB),
            takes_current=self.retention_takes_suspended,
        )
