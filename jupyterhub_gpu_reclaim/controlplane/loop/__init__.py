"""The control loop: observe, compare, do one action, look again.

On each tick of ``scheduler``, ``observer`` collects what agents and Hub say,
``reconciler`` (pure) compares it with every row, and sessions that need an action go
into ``workqueue``. ``worker`` looks at one session afresh, does its one action, and
looks again. The queue carries keys and no events, so a late, missed or doubled run does
no harm (law 6). Walk 1 of ``docs/explanation/walks.md`` goes through it.
"""
