"""An order to renew a login: for one session, once, and for a day."""

from __future__ import annotations

import contextlib

from jupyterhub_gpu_reclaim.clock import ManualClock
from jupyterhub_gpu_reclaim.models import SessionKey
from jupyterhub_gpu_reclaim.orchestrator import renewals
from jupyterhub_gpu_reclaim.orchestrator.journal import Journal
from jupyterhub_gpu_reclaim.orchestrator.sessions import Sessions

ADA, OTHER = SessionKey("ada"), SessionKey("ada", "train")


def test_order_holds_for_its_session_until_it_is_done_or_a_day_is_over(tmp_path):
    url = f"sqlite:///{tmp_path}/journal.sqlite"
    clock = ManualClock()
    with contextlib.closing(Journal(url)) as journal:
        renewals.order(Sessions(journal, clock), ADA, "root")
    with contextlib.closing(Journal(url)) as journal:  # after a restart
        sessions = Sessions(journal, clock)
        assert renewals.ordered(sessions, ADA)
        assert not renewals.ordered(sessions, OTHER)
        renewals.done(sessions, ADA)
        assert not renewals.ordered(sessions, ADA)
        renewals.order(sessions, ADA, "root")
        clock.advance(renewals.VALID - 1)
        assert renewals.ordered(sessions, ADA)
        clock.advance(1)
        assert not renewals.ordered(sessions, ADA)
        assert [line.who for line in journal.audit(ADA, 10)] == ["root", "root"]
