"""How a program that was forked from a preloaded one ends."""

import atexit
import os
import sys
import threading
from typing import Any


def run(main: Any) -> None:
    """As a program of its own, but for taking apart what was imported for it.

    That would copy every page that it shares: a quarter of a second. Never returns.
    """
    status = 0
    try:
        status = main()
    except SystemExit as end:
        status = end.code
    if isinstance(status, str):
        sys.stderr.write(f"{status}\n")
        status = 1
    whole: Any = (threading, atexit)
    whole[0]._shutdown()
    whole[1]._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status or 0)
