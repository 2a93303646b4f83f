"""The agent: captures, restores, releases and naps sessions on one node, on orders.

A call comes in through ``http``, ``local_node`` looks the session up (``sessions``),
``operations`` lets one operation per session run, and ``workflows`` does its steps.

It keeps no policy. The record of an operation is on disk before its next step begins.
Work that a former agent left unfinished is settled before any order can touch it (law
6); ``workflows.rescue`` continues sessions if no agent can be started. A refusal has a
code and a sentence. Read next: ``local_node``, then ``workflows`` and walk 1 of
``docs/explanation/walks.md``.
"""
