"""What a program can have, kind by kind: one class each, in the order of ``table``.

``kind.Kind`` has five questions: what keeps a session from being saved
(``preflight``), what is done to a tree that stands (``before_dump``), what is added to
CRIU's images (``save``), what CRIU is given instead of them (``rewrite``), and what a
tree that came back is given (``after_restore``). ``checkpoint.preflight``,
``tree.dump`` and ``tree.restore`` ask every kind in turn and know none by name.

A new kind is a file here, its line in ``table``, and its rows in
``tests/checkpoint/kinds/``. Read next: ``table``, then ``docs/explanation/criu.md``.
"""
