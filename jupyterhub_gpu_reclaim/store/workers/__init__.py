"""Worker processes: forked from a ready process, one channel each, ended with it.

A worker that dies or reports an error makes its work fail with ``StoreError``, and is
not waited for. A fork server that does not answer is an error, too, and the next work
has another one. When the agent ends, in whatever way, the kernel ends its workers, so
none goes on writing into the store.

Read next: ``group``, then "Workers are processes" in ``docs/explanation/store.md``.
"""
