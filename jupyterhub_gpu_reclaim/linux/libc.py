"""Error handling of calls of the C library by ctypes."""

from __future__ import annotations

import ctypes
import os
from typing import Final

#: The working directory, where a call wants a folder's descriptor; <linux/fcntl.h>.
AT_FDCWD: Final = -100


def checked(result: int, *name: str) -> int:
    """The result of a call of the C library; a negative one is an error.

    Args:
        result: of a library that was loaded with ``use_errno=True``.
        name: what the error names: the call, or its path.
    """
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), *name)
    return result
