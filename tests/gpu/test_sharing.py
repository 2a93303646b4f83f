"""Memory that two processes share: the driver would lose one of them.

``gpu_sharing`` has what is known of it; each of these sessions was emptied without an
error before, and never came back.
"""

import pytest

from tests.gpu.test_frameworks import TWO

#: Two programs without a framework, which do as they are told by lines of Python.
PAIR = """
import subprocess, sys
code = '''
import ast, ctypes, os, struct, sys
cu = ctypes.CDLL("libcuda.so.1")
class Handle(ctypes.Structure): _fields_ = [("bytes", ctypes.c_char * 64)]
cu.cuIpcOpenMemHandle_v2.argtypes = [ctypes.c_void_p, Handle, ctypes.c_uint]
cu.cuIpcOpenEventHandle.argtypes = [ctypes.c_void_p, Handle]
N = ctypes.c_size_t(16 << 20)
def must(code): assert code == 0, code
must(cu.cuInit(0))
context = ctypes.c_void_p()
must(cu.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
must(cu.cuCtxSetCurrent(context))
def handle_of(raw):
    made = Handle(); ctypes.memmove(ctypes.byref(made), raw, 64); return made
def alloc():
    p = ctypes.c_uint64(); must(cu.cuMemAlloc_v2(ctypes.byref(p), N)); return p
def put(p, text): must(cu.cuMemcpyHtoD_v2(p, text, ctypes.c_size_t(len(text))))
def get(p):
    b = ctypes.create_string_buffer(5)
    must(cu.cuMemcpyDtoH_v2(b, p, ctypes.c_size_t(5))); return b.raw
def export(p):
    h = (ctypes.c_char * 64)(); must(cu.cuIpcGetMemHandle(h, p)); return bytes(h.raw)
def attach(raw):
    p = ctypes.c_uint64()
    must(cu.cuIpcOpenMemHandle_v2(ctypes.byref(p), handle_of(raw), 1)); return p
def detach(p): must(cu.cuIpcCloseMemHandle(p))
def event():
    global e
    e = ctypes.c_void_p(); must(cu.cuEventCreate(ctypes.byref(e), 6))
    h = (ctypes.c_char * 64)(); must(cu.cuIpcGetEventHandle(h, e)); return bytes(h.raw)
def attach_event(raw):
    global e
    e = ctypes.c_void_p()
    must(cu.cuIpcOpenEventHandle(ctypes.byref(e), handle_of(raw)))
def import_own():
    prop = bytearray(32); struct.pack_into("<IIII", prop, 0, 1, 1, 1, 0)
    h, again, fd = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_int()
    made = (ctypes.c_char * 32).from_buffer(prop)
    must(cu.cuMemCreate(ctypes.byref(h), N, made, ctypes.c_uint64(0)))
    must(cu.cuMemExportToShareableHandle(ctypes.byref(fd), h, 1, ctypes.c_uint64(0)))
    must(cu.cuMemImportFromShareableHandle(
        ctypes.byref(again), ctypes.c_void_p(fd.value), 1))
    os.close(fd.value)
for line in sys.stdin:
    tree = ast.parse(ast.literal_eval(line)); last = tree.body.pop()
    exec(compile(tree, "x", "exec"))
    print(repr(eval(compile(ast.Expression(last.value), "x", "eval"))), flush=True)
'''
import ast
pair = [subprocess.Popen([sys.executable, "-c", code], text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)]
def tell(number, line):
    one = pair[number]
    one.stdin.write(repr(line) + "\\n"); one.stdin.flush()
    return ast.literal_eval(one.stdout.readline())
def attach():
    tell(1, f"q = attach({tell(0, 'export(p)')!r}); None")
def attach_event():
    tell(1, f"attach_event({tell(0, 'event()')!r}); None")
tell(0, "p = alloc(); put(p, b'hello'); None"); tell(1, "None")
"""
#: A tensor that a process of PyTorch's own has received; kept, or dropped again.
TORCH = """
import sys, types, torch
torch.set_num_threads(1)
open("/tmp/gra_received.py", "w").write('''
import gc, torch
def child(q, r, go):
    t = q.get(); r.put(float(t.sum())); go.get()
    del t; gc.collect(); torch.cuda.ipc_collect()
    x = torch.ones(1 << 20, device="cuda"); r.put("dropped")
    while go.get(): r.put(float(x.sum()))
''')
sys.path.insert(0, "/tmp")
import gra_received
context = torch.multiprocessing.get_context("spawn")
q, r, go = context.Queue(), context.Queue(), context.Queue()
receiver = context.Process(target=gra_received.child, args=(q, r, go), daemon=True)
receiver.start()
x = torch.ones(1 << 24, device="cuda")
q.put(x); got = r.get()
"""


def code_of(session) -> str:
    event = session.capture()
    assert event["failure"], event
    return event["failure"]["code"]


def test_a_handle_that_is_open_is_refused_and_one_that_is_closed_is_not(session):
    one = session()
    one(PAIR + "None")
    one("attach()")
    assert code_of(one) == "gpu_ipc"
    # Nothing was touched: what the one writes the other reads.
    assert one("tell(0, \"put(p, b'world'); None\"), tell(1, 'get(q)')") == (
        None,
        b"world",
    )
    one("tell(1, 'detach(q); None')")
    one.cycle()
    assert one("tell(0, 'get(p)')") == b"world"


def test_memory_that_has_lost_its_owner_is_refused_where_an_event_tells_of_it(session):
    one = session()
    one(PAIR + "None")
    one("attach()")
    one("attach_event()")
    one("pair[0].kill(); pair[0].wait()")
    assert code_of(one) == "gpu_ipc"
    assert one("tell(1, 'get(q)')") == b"hello"


def test_events_that_are_shared_come_back(session):
    one = session()
    one(PAIR + "None")
    one("attach_event()")
    one.cycle()
    recorded = "tell(0, 'cu.cuEventRecord(e, None), cu.cuEventSynchronize(e)')"
    waited = "tell(1, 'cu.cuStreamWaitEvent(None, e, 0), cu.cuCtxSynchronize()')"
    assert one(recorded) == (0, 0)
    assert one(waited) == (0, 0)


def test_one_that_has_imported_its_own_memory_is_refused(session):
    one = session()
    one(PAIR + "pair[1].kill(); tell(0, 'import_own(); None')")
    assert code_of(one) == "gpu_ipc"
    assert one("tell(0, 'get(p)')") == b"hello"


def test_a_tensor_that_another_process_has_received_is_refused_until_it_is_dropped(
    session,
):
    pytest.importorskip("torch")
    one = session()
    assert one(TORCH + "got") == 1 << 24
    assert code_of(one) == "gpu_ipc"
    assert one("go.put(1), r.get()")[1] == "dropped"
    one.cycle()
    assert one("go.put(1), r.get(), float(x.sum())")[1:] == (1 << 20, 1 << 24)


def test_two_that_share_nothing_are_told_apart_from_those_that_do(session):
    one = session()
    one(TWO + "None")
    before = one("[ask(p) for p in both]")
    one.cycle()
    assert one("[ask(p) for p in both]") == before


#: Beside a program that has memory: one that has initialised CUDA, and one NVML.
LOOKERS = """
import ctypes
look = [subprocess.Popen([sys.executable, "-c", "import ctypes, sys\\n" + code +
        "\\nprint('x', flush=True); sys.stdin.read()"], text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE) for code in (
    "assert ctypes.CDLL('libcuda.so.1').cuInit(0) == 0",
    "assert ctypes.CDLL('libnvidia-ml.so.1').nvmlInit_v2() == 0")]
[one.stdout.readline() for one in look]
"""


def test_those_that_have_only_looked_at_the_card_do_not_hinder_the_others(session):
    one = session()
    one(TWO + LOOKERS + "None")
    before = one("[ask(p) for p in both]")
    one.cycle()
    assert one("[ask(p) for p in both]") == before
    assert one("[p.poll() for p in look]") == [None, None]
