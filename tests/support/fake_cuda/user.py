"""A program with a false card: it dies if it runs while its card is away, as JAX does.

Arguments: the folder for the driver's state, the file that stands for the device.
"""

import os
import sys
import threading
import time
from pathlib import Path

folder, device = sys.argv[1:3]
state = Path(folder, str(os.getpid()))
done = state.with_suffix(".done")
held = [os.open(device, os.O_RDWR)]


def write(path: Path, text: str) -> None:
    new = path.with_suffix(".own")
    new.write_text(text)
    new.replace(path)


def drive() -> None:
    """What the driver's own thread does in a process."""
    write(state, f"0 {threading.get_native_id()}")
    while True:
        wanted = int(state.read_text().split()[0])
        if wanted == 2 and held:
            os.close(held.pop())
            write(done, "2")
        elif wanted == 1 and not held:
            held.append(os.open(device, os.O_RDWR))
            write(done, "1")
        time.sleep(0.002)


if os.fork() == 0:
    # Like a DataLoader's worker: it has the device open and no use for it.
    while True:
        time.sleep(0.02)
        sys.stdout.write("c")
        sys.stdout.flush()

threading.Thread(target=drive, daemon=True).start()
while not state.exists():
    time.sleep(0.001)
while True:
    for _ in range(20):
        if not held:
            print("CRASHED: its card is away", flush=True)
            os._exit(1)
        time.sleep(0.001)
    sys.stdout.write("p")
    sys.stdout.flush()
