"""From samples to decisions: the sampler, the judge, warnings, preemption.

``sampler`` keeps the agents' samples in one window per incarnation. ``judge`` asks the
policy about one session; ``preemption`` asks it which sessions go for those that wait
for a GPU, and ``gpu_queue`` says whose turn it is. ``warning`` warns a session, and
judges once more before a suspend begins. Nothing here suspends. An agent that does not
answer gives no sample, and nothing is made up (law 5).
"""
