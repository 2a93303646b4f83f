"""The process tree: frozen, dumped, restored, compared, let go on.

A tree that CRIU has left is stopped until ``inspection`` has compared each descriptor
and mapping with what was opened for it; a failed dump ends with ``thaw``.
"""
