"""The bytes of ``FORMAT.md``: keys, manifests, the index, compression, sealing.

``keys`` has the master keys, ``crypto`` derives all others and seals bytes bound to
their place. ``manifest`` makes a checkpoint exist, ``index`` says which chunk of which
file stands where, ``compression`` packs a block, and ``layout`` names the objects.

Nearly all of it is pure. No block or index is parsed before it is authenticated, and of
a manifest the head alone; lengths and numbers are checked all the same. What is not as
it was written is ``CHECKPOINT_DAMAGED``; a key that is not here is ``KEY_MISSING``.

Read next: ``store/FORMAT.md``, then ``crypto`` and ``manifest``.
"""
