"""The control plane's calls: for people, for programs and for the spawner.

``controller`` wires the parts and passes each call on. ``users`` takes what people ask;
``starts`` and ``stops`` answer the spawner. ``audit_text`` puts audit lines into
sentences.

A person's order is checked and journalled before it is answered, and the worker carries
it out, so a restart loses nothing that was answered. While a checkpoint is known, no
start is planned cold (law 4): where no plan can be made, the answer is ``refuse`` with
its reason.

Read next: ``controller`` and ``starts``, then walks 1 and 3 of
``docs/explanation/walks.md``.
"""
