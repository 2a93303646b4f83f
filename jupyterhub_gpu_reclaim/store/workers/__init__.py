"""Worker processes: forked from a ready process, one channel each, ended with it.

``pool`` provides workers, which ``fork_server`` forks within milliseconds. ``handle``
is one worker as the agent sees it, ``channel`` their messages and shared memory, and
``worker`` their main function. ``group`` sets up the workers of one capture or one
copy; ``pack_writers`` spreads a checkpoint over them and our own threads.

A worker that dies or reports an error makes its work fail with ``StoreError``, and is
not waited for. A fork server that does not answer is replaced. When the agent ends, in
whatever way, the kernel ends its workers, so none goes on writing into the store.

Read next: ``group``, then "Workers are processes" in ``docs/explanation/store.md``.
"""
