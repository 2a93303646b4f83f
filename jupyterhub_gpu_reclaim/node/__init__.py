"""The agent: captures, restores, releases and naps sessions on one node, on orders.

``app`` wires it and runs as root. A call comes in through ``http``, ``local_node``
looks the session up (``sessions``), ``operations`` lets one operation per session run,
and ``workflows`` does its steps. ``requirements`` says whether a checkpoint fits this
machine.

It keeps no policy. The record of an operation is on disk before its next step begins.
What a former agent left unfinished is settled before any order can touch it (law 6);
``workflows.rescue`` lets sessions go on where no agent can be started.
``nap`` notices what wakes one. A refusal has a code and a
sentence.

Read next: ``local_node``, then ``workflows`` and walk 1 of
``docs/explanation/walks.md``.
"""
