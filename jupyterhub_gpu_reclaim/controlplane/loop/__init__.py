"""The control loop: observe, compare, do one action, look again.

``scheduler`` samples and ticks. On each tick ``observer`` collects what agents and Hub
say, ``reconciler`` (pure) compares it with every row, and sessions that need an action
go into ``workqueue``. ``worker`` looks at one session afresh, does its one action, and
looks again.

There is one worker for a session at a time, and a bound for all. The queue carries keys
and no events, so a late, missed or doubled run does no harm (law 6). A failure is
logged and the key comes again, each time later. No answer of a part is kept apart from
"nothing there": a session whose agent is silent is left as it is.

Read next: ``reconciler``, whose table is the whole behaviour, then ``worker`` and walk
1 of ``docs/explanation/walks.md``.
"""
