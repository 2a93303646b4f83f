"""Which process runs which tests: those that share something, in one."""

from xdist.scheduler import LoadFileScheduling

from tests.support import sharing


class GroupScheduling(LoadFileScheduling):
    """As ``--dist loadfile``, with a group of files as one."""

    def _split_scope(self, nodeid: str) -> str:
        return sharing.scope_of(nodeid)
