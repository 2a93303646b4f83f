"""Code that every part of the product shares: data, errors, reasons, text, time, HTTP.

Nothing here imports another room, and nothing here decides about a session. No error
but those of ``errors`` crosses the border of a room, and each has a stable code with a
sentence (law 7). Files are written whole or not at all (``durable``).

Read next: ``models`` and ``errors``, then ``docs/explanation/glossary.md``.
"""
