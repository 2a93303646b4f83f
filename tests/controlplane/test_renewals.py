"""An order to renew a login: for one session, once, and for a day."""

import contextlib

from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.controlplane.journal import Journal
from jupyterhub_gpu_reclaim.controlplane.plans import (
    RENEWAL_SECONDS,
    end_renewal,
    order_renewal,
    renewal_ordered,
)
from jupyterhub_gpu_reclaim.controlplane.sessions import Sessions
from tests.support.manual_clock import ManualClock

ADA, OTHER = SessionKey("ada"), SessionKey("ada", "train")


def test_order_holds_for_its_session_until_it_is_done_or_a_day_is_over(tmp_path):
    url = f"sqlite:///{tmp_path}/journal.sqlite"
    clock = ManualClock()
    with contextlib.closing(Journal(url)) as journal:
        order_renewal(Sessions(journal, clock), ADA, "root")
    with contextlib.closing(Journal(url)) as journal:  # after a restart
        sessions = Sessions(journal, clock)
        assert renewal_ordered(sessions, ADA)
        assert not renewal_ordered(sessions, OTHER)
        end_renewal(sessions, ADA)
        assert not renewal_ordered(sessions, ADA)
        order_renewal(sessions, ADA, "root")
        clock.advance(RENEWAL_SECONDS - 1)
        assert renewal_ordered(sessions, ADA)
        clock.advance(1)
        assert not renewal_ordered(sessions, ADA)
        assert [line.who for line in journal.audit(ADA, 10)] == ["root", "root"]
