"""What the store's tests share: master keys that are no secret."""

from jupyterhub_gpu_reclaim.store.format.keys import KeyRing

KEYS = KeyRing({"k1": b"1" * 32})
