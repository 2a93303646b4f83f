"""What the card says of its processes, as it really does."""

import time

from jupyterhub_gpu_reclaim.sampling.nvml import Nvml
from tests.gpu.test_frameworks import TORCH
from tests.support.agent import wait_for


def test_a_working_process_is_told_from_an_idle_one(session):
    idle, busy = session(), session()
    idle(TORCH + "None")
    busy(
        TORCH
        + """
import threading
a = torch.randn(4096, 4096, device="cuda")
def work():
    while True:
        a @ a; torch.cuda.synchronize()
threading.Thread(target=work, daemon=True).start()
"""
    )
    nvml = Nvml()
    began = time.time()
    time.sleep(2)
    uses = {p.pid: p for card in nvml.measure(began) for p in card.processes}
    (of_idle,) = (uses[pid] for pid in idle.pids if pid in uses)
    (of_busy,) = (uses[pid] for pid in busy.pids if pid in uses)
    assert of_idle.sm_percent == 0
    assert of_busy.sm_percent > 50
    assert of_idle.memory > 2**28
    busy.place.kill()
    wait_for(lambda: of_busy.pid not in _pids(nvml))
    nvml.close()


def _pids(nvml: Nvml) -> set[int]:
    return {p.pid for card in nvml.measure(time.time() - 1) for p in card.processes}
