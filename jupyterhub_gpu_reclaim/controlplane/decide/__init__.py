"""From samples to decisions: the sampler, the judge, warnings, preemption.

``sampler`` keeps the agents' samples in one window per incarnation. ``judge`` asks the
policy about one session, with a snapshot of row, usage and rules; ``preemption`` asks
it which sessions to select for those that wait for a GPU, and ``gpu_queue`` says whose
turn it is. ``warning`` warns a session, and samples and judges once more before a
suspend begins.

Nothing here suspends, and the policies themselves are in ``policy``, which does not
import this room. An agent that does not answer gives no sample, and nothing is made up
(law 5); then a warning cannot be confirmed. What was warned and selected is only in
memory: after a restart a session is warned again, for the full time.

Read next: ``judge``, then ``policy.decide`` and walk 4 of
``docs/explanation/walks.md``.
"""
