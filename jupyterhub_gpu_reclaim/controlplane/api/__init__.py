"""The control plane's calls: for people, for programs and for the spawner.

``controller`` wires the parts. ``users`` takes what people ask; ``starts`` and
``stops`` answer the spawner. A person's order is journalled before it is answered, and
the worker carries it out. While a checkpoint is known, no start is planned cold (law
4): where no plan can be made, the answer is ``refuse`` with its reason.
"""
