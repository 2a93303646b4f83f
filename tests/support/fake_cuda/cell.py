"""Run in a cell: the kernel holds a false card, and ends if it runs without it.

$FALSE_CARD names the folder of the driver's state and what stands for the card.
"""

import os
import threading
import time
from pathlib import Path

folder, device = os.environ["FALSE_CARD"].split(":")
state = Path(folder, str(os.getpid()))
held = [os.open(device, os.O_RDWR)]


def write(path, text):
    new = path.with_suffix(".own")
    new.write_text(text)
    new.replace(path)


def drive():
    """What the driver's own thread does in a process."""
    write(state, f"0 {threading.get_native_id()}")
    while True:
        wanted = int(state.read_text().split()[0])
        if wanted == 2 and held:
            os.close(held.pop())
            write(state.with_suffix(".done"), "2")
        elif wanted == 1 and not held:
            held.append(os.open(device, os.O_RDWR))
            write(state.with_suffix(".done"), "1")
        time.sleep(0.005)


def look():
    """As JAX's thread looks at memory that the driver maps."""
    while held:
        time.sleep(0.005)
    os._exit(9)


threading.Thread(target=drive, daemon=True).start()
while not state.exists():
    time.sleep(0.001)
threading.Thread(target=look, daemon=True).start()
