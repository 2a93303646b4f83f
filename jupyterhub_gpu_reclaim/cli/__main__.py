"""``python -m jupyterhub_gpu_reclaim.cli``, if no script of it is in the PATH."""

from __future__ import annotations

import sys

from jupyterhub_gpu_reclaim.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
