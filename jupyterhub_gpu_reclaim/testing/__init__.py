"""Shipped fakes: named by their fault, held to the contract suite of the real ones.

``memory_agent`` is an agent whose sessions are values, ``memory_backend`` a storage
backend in memory, and ``faulty_backend`` a backend that fails in a known way.

``tests/contracts`` runs one suite on the real thing and on its fake, so what a test
learns from a fake holds for the real one, as far as the suite goes. Nothing in
production makes one, and the import rules in ``pyproject.toml`` forbid it.

Read next: ``memory_agent``, then ``store/backend.py`` for the interface of a backend.
"""
