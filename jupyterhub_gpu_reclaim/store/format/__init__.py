"""The bytes of ``FORMAT.md``: keys, manifests, the index, compression, sealing."""
