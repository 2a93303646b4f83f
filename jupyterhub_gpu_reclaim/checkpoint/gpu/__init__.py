"""GPU memory into host memory and back, by the driver's checkpoint interface.

NVIDIA's driver is called in a helper process, which can be ended when it hangs.
"""
