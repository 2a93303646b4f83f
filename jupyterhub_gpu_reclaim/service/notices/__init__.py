"""Notices to a webhook, and by e-mail and messengers, made of the audit log.

``courier`` reads the audit after a mark for each channel, ``notice`` says which lines
become notices and in which words, and ``webhook`` and ``messenger`` send
them. ``settings`` makes the channels; without any, nothing is sent.

No session waits for a channel, and one that fails does not end the others. A notice is
tried a few times, then logged and given up; one that is an hour old is not sent. After
a crash a notice may come twice, with the same id. Addresses and secrets are never
logged.

Read next: ``courier``, then "Who is told what happened" in
``docs/explanation/architecture.md``.
"""
