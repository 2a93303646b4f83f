"""GPU memory into host memory and back, by the driver's checkpoint interface.

``survey`` finds which processes use a GPU and what cannot be saved. ``cuda`` empties
them before a dump, and fills them after a restore or to undo a capture. NVIDIA's driver
is called by ``driver`` through ``driver_helper``, a process that can be ended when it
hangs. ``visible_devices`` reads which cards a container has.

Emptying is all or nothing: after a failure every process has its memory back (law 2),
or the error is ``gpu_stuck``. Each call goes by the state that the driver reports, so
it may be repeated after a crash. Read next: ``cuda``, ``docs/explanation/gpu.md``.
"""
