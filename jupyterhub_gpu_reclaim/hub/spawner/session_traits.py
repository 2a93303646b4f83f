"""Settings that spawners of several kinds of place have alike."""

from __future__ import annotations

from traitlets import HasTraits, Unicode


class RealmTraits(HasTraits):
    """Settings of spawners that make their sessions' places themselves."""

    realm = Unicode(
        "",
        help="""Name that tells this Hub's sessions from another's on the same machines.

        The agents of these sessions must have the same `AgentApp.realm`. Empty (the
        default) is right where no other Hub has sessions there. Example: ``teaching``.
        """,
    ).tag(config=True)


class ImageTraits(RealmTraits):
    """Settings of spawners whose places are containers of an image."""

    session_python = Unicode(
        "python3",
        help="""The Python (3.7 or later) in the image that runs the session's init.

        A name in the image's PATH, or a path. An image without any Python cannot be
        used with this spawner. Set it where the image has it elsewhere.
        """,
    ).tag(config=True)
