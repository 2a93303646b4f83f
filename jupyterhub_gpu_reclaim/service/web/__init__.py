"""The pages: each person's own sessions, the managers' table, and their forms.

``site`` is every route and page in one value. ``pages`` shows a visitor's sessions
(``cards``) with their reasons, ``forms`` does what the buttons say, and ``manager`` is
the managers' page.

One's own sessions and each session's page work without scripts; the managers' tables
are drawn by one (``static/manager``) with Tabulator (``static/tabulator``, as
published, checked by ``SHA256SUMS``). An error is a page with its sentence.

Read next: ``pages``, then ``service/api/visits.py`` and "A page that another user
serves" in ``docs/explanation/security.md``.
"""
