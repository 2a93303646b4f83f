"""Sessions whose own programs keep the agent waiting, or that it cannot look at."""

import threading
from types import SimpleNamespace

from jupyterhub_gpu_reclaim.common.models import SessionKey, Tree, TreeState
from jupyterhub_gpu_reclaim.node.sessions import samples
from jupyterhub_gpu_reclaim.node.sessions.samples import TreeSampler, find_kernels


class Sampled:
    """Stands for the sampler: notes what it is to sample."""

    async def sample_all(self, targets):
        return [one.incarnation for one in targets]


def tree(name: str) -> Tree:
    key = SessionKey(name)
    return Tree(incarnation=name, key=key, state=TreeState.RUNNING, init_pid=1)


async def test_sessions_that_keep_us_waiting_or_fail_cost_no_other_its_sample(
    monkeypatch,
):
    together = threading.Barrier(5)

    def inspect(session, children):
        if session.startswith("slow"):
            together.wait(60)  # nobody waits for one before
        if session.startswith("broken"):
            raise RuntimeError("a fault of ours")
        one = SimpleNamespace(pid=1)
        return SimpleNamespace(init=one, server=one, processes=[one])

    monkeypatch.setattr(samples.trees, "inspect", inspect)
    monkeypatch.setattr(samples, "find_address", lambda *_: None)
    monkeypatch.setattr(samples, "find_kernels", lambda _: [])
    names = ["ada", *(f"slow{n}" for n in range(5)), "broken", "bob"]
    taken = await TreeSampler(Sampled()).samples([(name, tree(name)) for name in names])
    assert taken == [name for name in names if name != "broken"]


def test_server_with_thousands_of_programs_is_asked_about_some(monkeypatch):
    asked = []
    monkeypatch.setattr(samples, "is_started_as_kernel", asked.append)

    def program(pid: int, parent: int) -> SimpleNamespace:
        return SimpleNamespace(pid=pid, ppid=parent, ns_pid=pid, start_time=1)

    root, server = program(2, 1), program(3, 2)
    programs = [program(n, 3) for n in range(4, 20_000)]
    every = [root, server, *programs]
    tree = SimpleNamespace(processes=every, root=root, server=server)
    assert find_kernels(tree) == []
    assert asked == list(range(4, 4 + samples.MOST_ASKED))
