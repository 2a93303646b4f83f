"""What people run on a card, saved and brought back three times with equal results."""

import importlib.util

import pytest

from jupyterhub_gpu_reclaim.checkpoint.gpu.survey import held_by

TORCH = """
import torch
torch.set_num_threads(1)
torch.manual_seed(0)
x = torch.randn(1 << 26, device="cuda")
"""
#: By name: the framework, what sets it up, and what must be the same ever after.
PROGRAMS = {
    "tensors": ("torch", TORCH, "(float(x.sum()), float((x @ x)))"),
    "nvml": (
        "pynvml",
        TORCH
        + """
import pynvml
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
""",
        "(float(x.sum()), pynvml.nvmlDeviceGetMemoryInfo(handle).used > 2**28)",
    ),
    "pinned": (
        "torch",
        TORCH
        + """
host = torch.arange(1 << 24, dtype=torch.float32).pin_memory()
""",
        "(host.is_pinned(), float(host.to('cuda', non_blocking=True).sum()))",
    ),
    "compile": (
        "triton",
        TORCH
        + """
@torch.compile
def f(v): return (torch.sin(v) * 2 + torch.cos(v)).sum()
f(x)
""",
        "float(f(x))",
    ),
    "jax": (
        "jax",
        """
import jax, jax.numpy as jnp
g = jax.jit(lambda v: jnp.tanh(v) @ jnp.cos(v))
v = jax.random.normal(jax.random.key(0), (1 << 24,))
""",
        "(float(g(v)), float(v.sum()))",
    ),
    "cupy": (
        "cupy",
        """
import cupy
c = cupy.random.default_rng(0).standard_normal(1 << 24)
""",
        "(float(c.sum()), float((c * c).sum()))",
    ),
}
#: A conv net with AdamW, trained by replaying a graph: cuDNN, cuBLAS, graphs.
GRAPH = """
import torch
torch.set_num_threads(1)
torch.manual_seed(0)
torch.backends.cudnn.deterministic = True
net = torch.nn.Sequential(
    torch.nn.Conv2d(3, 32, 3), torch.nn.ReLU(), torch.nn.Flatten(),
    torch.nn.Linear(32 * 30 * 30, 64), torch.nn.Linear(64, 10)).cuda()
adam = torch.optim.AdamW(net.parameters(), capturable=True)
images = torch.randn(16, 3, 32, 32, device="cuda")
labels = torch.randint(10, (16,), device="cuda")
def step():
    adam.zero_grad(set_to_none=False)
    loss = torch.nn.functional.cross_entropy(net(images), labels)
    loss.backward()
    adam.step()
    return loss
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    for _ in range(3): step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph): loss = step()
def replay(n):
    told = []
    for _ in range(n):
        graph.replay(); torch.cuda.synchronize(); told.append(float(loss))
    return told
"""
LOADER = """
import torch
from torch.utils.data import DataLoader, Dataset
torch.set_num_threads(1)
x = torch.ones(1 << 24, device="cuda")
class Numbers(Dataset):
    def __len__(self): return 64
    def __getitem__(self, i): return torch.full((1000,), float(i))
loader = DataLoader(Numbers(), batch_size=8, num_workers=2, persistent_workers=True,
                    pin_memory=True)
def epoch(): return sum(float(part.cuda().sum()) for part in loader)
"""
TWO = """
import subprocess, sys
code = '''
import sys, torch
torch.manual_seed(int(sys.argv[1]))
x = torch.randn(1 << 26, device="cuda")
for line in sys.stdin: print(float(x.sum()), flush=True)
'''
both = [subprocess.Popen([sys.executable, "-c", code, str(n)], text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE) for n in range(2)]
def ask(one):
    one.stdin.write("x\\n"); one.stdin.flush()
    return float(one.stdout.readline())
"""


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_computes_the_same_after_each_of_three_returns(session, name):
    module, setup, check = PROGRAMS[name]
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    one = session()
    one(setup + "None")
    before = one(check)
    for _ in range(3):
        one.cycle()
        assert one(check) == before
    print(name, one.seconds)


@pytest.mark.parametrize("run", range(3))
def test_a_program_that_has_just_compiled_is_saved_at_once(session, run):
    """Its compilers begin to use the card seconds later."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed")
    _, setup, check = PROGRAMS["compile"]
    one = session()
    one(f"import torch._inductor.config as c\nc.force_disable_caches = True\n{setup}0")
    one.cycle()
    before = one(check)
    one.cycle()
    assert one(check) == before


def test_a_card_is_free_while_its_session_is_saved_and_taken_back(session, driver):
    one = session()
    one(TORCH + "None")
    before = one("float(x.sum())")
    assert any(held_by(pid) for pid in one.pids)
    assert one.capture()["checkpoint"]
    assert not any(held_by(pid) for pid in one.pids)
    one.thaw()
    assert one("float(x.sum())") == before


def test_training_by_graph_goes_on_as_if_it_had_never_stopped(session):
    twin = session()
    twin(GRAPH + "None")
    expected = twin("replay(12)")
    twin.place.kill()
    one = session()
    one(GRAPH + "None")
    seen = one("replay(3)")
    for _ in range(3):
        one.cycle()
        seen += one("replay(3)")
    assert seen == expected


def test_loader_workers_live_on(session):
    one = session()
    one(LOADER + "None")
    before, workers = one("epoch()"), one("[w.pid for w in loader._iterator._workers]")
    for _ in range(3):
        one.cycle()
        assert one("epoch()") == before
    assert one("[w.pid for w in loader._iterator._workers]") == workers
    assert one("float(x.sum())") == 1 << 24


def test_two_processes_with_one_card(session):
    one = session()
    one(TWO + "None")
    before = one("[ask(p) for p in both]")
    assert before[0] != before[1]
    for _ in range(3):
        one.cycle()
        assert one("[ask(p) for p in both]") == before
