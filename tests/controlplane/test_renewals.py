"""An order to renew a login: for one session, once, and for a day."""

from __future__ import annotations

import contextlib

from jupyterhub_gpu_reclaim.common.clock import ManualClock
from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.controlplane.flows import login_renewal
from jupyterhub_gpu_reclaim.controlplane.journal.journal import Journal
from jupyterhub_gpu_reclaim.controlplane.sessions.registry import Sessions

ADA, OTHER = SessionKey("ada"), SessionKey("ada", "train")


def test_order_holds_for_its_session_until_it_is_done_or_a_day_is_over(tmp_path):
    url = f"sqlite:///{tmp_path}/journal.sqlite"
    clock = ManualClock()
    with contextlib.closing(Journal(url)) as journal:
        login_renewal.order(Sessions(journal, clock), ADA, "root")
    with contextlib.closing(Journal(url)) as journal:  # after a restart
        sessions = Sessions(journal, clock)
        assert login_renewal.ordered(sessions, ADA)
        assert not login_renewal.ordered(sessions, OTHER)
        login_renewal.done(sessions, ADA)
        assert not login_renewal.ordered(sessions, ADA)
        login_renewal.order(sessions, ADA, "root")
        clock.advance(login_renewal.VALID - 1)
        assert login_renewal.ordered(sessions, ADA)
        clock.advance(1)
        assert not login_renewal.ordered(sessions, ADA)
        assert [line.who for line in journal.audit(ADA, 10)] == ["root", "root"]
