"""A program with a false card: it dies if it runs while its card is away, as JAX does.

Arguments: the folder for the driver's state, the file that stands for the device, and
"forks" (another child as soon as it is locked), "imports" (a second such program is
started, which has memory of the first one open), "large" (its memory moves slowly),
"alone" (no child), "begins" (a second such program begins as soon as this is locked)
or "deaf" (a second one has the device open that the driver never knows).
"""

import ctypes
import mmap
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

folder, device, *words = sys.argv[1:]
state = Path(folder, str(os.getpid()))
seconds = 0.7 if "large" in words else 0.0


def start_second(word: str) -> Path:
    """Another such program; where the driver is told of it."""
    command = [sys.executable, sys.argv[0], str(folder), device, word]
    return Path(folder, str(subprocess.Popen(command).pid))


if "deafer" in words:
    file = state.with_name("libcuda.so.1")  # whoever opens a device has the library
    file.write_bytes(bytes(4096))
    with file.open("rb") as opened:
        library = mmap.mmap(opened.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ)
held = ctypes.c_int(os.open(device, os.O_RDWR))
drive = ctypes.CDLL(str(Path(folder).with_name("own.so"))).drive
drive.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_double)


def fork_when_locked() -> None:
    while not state.read_text().startswith("1"):
        time.sleep(0.001)
    if os.fork() == 0:
        while True:
            time.sleep(0.02)
            os.write(1, b"l")  # another thread may hold the lock of sys.stdout
    state.with_suffix(".forked").touch()


def begin_when_locked() -> None:
    while not state.read_text().startswith("1"):
        time.sleep(0.001)
    second = start_second("begun")
    while not second.exists():
        time.sleep(0.001)
    state.with_suffix(".forked").touch()


letter = "i" if {"imported", "begun"} & {*words} else "p"
if "imported" in words:
    state.with_suffix(".imports").touch()
elif "deafer" in words:
    time.sleep(1000)
elif not {"alone", "begins", "begun", "deaf"} & {*words} and os.fork() == 0:
    # Like a DataLoader's worker: it has the device open and no use for it.
    while True:
        time.sleep(0.02)
        sys.stdout.write("c")
        sys.stdout.flush()

arguments = (bytes(state), device.encode(), ctypes.byref(held), seconds)
threading.Thread(target=drive, args=arguments, daemon=True).start()
while not state.exists():
    time.sleep(0.001)
if "forks" in words:
    state.with_suffix(".forks").touch()
    threading.Thread(target=fork_when_locked, daemon=True).start()
if "begins" in words:
    state.with_suffix(".forks").touch()
    threading.Thread(target=begin_when_locked, daemon=True).start()
for word, second in (("imports", "imported"), ("deaf", "deafer")):
    if word in words:
        start_second(second)
while True:
    for _ in range(20):
        if held.value < 0:
            print("CRASHED: its card is away", flush=True)
            os._exit(1)
        time.sleep(0.001)
    sys.stdout.write(letter)
    sys.stdout.flush()
