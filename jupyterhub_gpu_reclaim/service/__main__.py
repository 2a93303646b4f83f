"""``python -m jupyterhub_gpu_reclaim.service``: the service's program."""

from __future__ import annotations

from jupyterhub_gpu_reclaim.service.app import main

if __name__ == "__main__":
    main()
