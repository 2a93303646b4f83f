"""Samples what sessions do, and sums the samples up into usage over a window.

On the node, ``sampler`` takes one sample of each session; in the service, ``window``
sums the samples of one incarnation up.

Unknown is ``None``, never zero (law 5); a gap in the samples starts the window again.
Each sample has a time limit and never fails as a whole: what does not answer is missing
in it. Sampling changes nothing, and does not count as use of the session. Read next:
``sampler`` and ``window``, then walk 4 of ``docs/explanation/walks.md``.
"""
