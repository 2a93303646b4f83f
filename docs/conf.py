"""The documentation's site: Sphinx with MyST, in the theme of JupyterHub's own pages.

``make docs`` builds it into ``build/site`` and fails where a link is broken. The
same files are read on GitHub, so links are those of plain Markdown. What leads out of
``docs/`` becomes a link to the repository where that is known (a workflow and Read the
Docs say it), and otherwise a file to download.
"""

from __future__ import annotations

import os
import re
from importlib.metadata import version as installed
from pathlib import Path
from typing import TYPE_CHECKING

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms import SphinxTransform

if TYPE_CHECKING:
    from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parent
CLONED = os.environ.get("READTHEDOCS_GIT_CLONE_URL", "").removesuffix(".git")
REPOSITORY = os.environ.get("GITHUB_REPOSITORY") or "/".join(
    CLONED.replace(":", "/").split("/")[-2:]
)

project = "jupyterhub-gpu-reclaim"
author = "The jupyterhub-gpu-reclaim team"
copyright = author  # noqa: A001 - Sphinx's name
release = version = installed("jupyterhub-gpu-reclaim")

extensions = ["myst_parser", "sphinx_copybutton"]
exclude_patterns = ["README.md"]  # index.md includes it
#: Anchors for headings, made as GitHub makes them.
myst_heading_anchors = 4
nitpicky = True
#: A code block that its lexer does not understand is shown without colours.
suppress_warnings = ["misc.highlighting_failure"]

html_theme = "pydata_sphinx_theme"
html_title = project
html_theme_options = {
    "navbar_end": ["search-button-field", "theme-switcher"],
    "navbar_persistent": [],
    "show_prev_next": False,
}
if REPOSITORY:
    html_theme_options["github_url"] = f"https://github.com/{REPOSITORY}"


class LinksOutside(SphinxTransform):
    """Makes what leads out of ``docs/`` a link to the repository, or a download."""

    default_priority = 870  # before Sphinx collects downloads, at 880

    def apply(self) -> None:
        """Replace what MyST has made of such links on one page."""
        page = Path(self.env.doc2path(self.env.docname)).parent
        for node in list(self.document.findall(addnodes.download_reference)):
            _replace(node, page / node["reftarget"])
        for node in list(self.document.findall(addnodes.pending_xref)):
            if str(node.get("reftarget")).startswith("/"):  # a page outside ours
                _replace(node, Path(f"{node['reftarget']}.md"))


def _replace(node: addnodes.pending_xref, there: Path) -> None:
    path = there.resolve().relative_to(DOCS.parent).as_posix()
    link: nodes.Element = addnodes.download_reference(
        refdoc=node["refdoc"], reftarget=f"/../{path}"
    )
    if REPOSITORY:
        heading = f"#{node['reftargetid']}" if node.get("reftargetid") else ""
        address = f"https://github.com/{REPOSITORY}/blob/HEAD/{path}{heading}"
        link = nodes.reference(refuri=address)
    link += node.children
    node.replace_self(link)


def tell_anchors(app: Sphinx, page: nodes.document) -> None:
    """Let MyST know the anchors that a page has as HTML, as each message's."""
    known = app.env.metadata[app.env.docname].setdefault("myst_slugs", {})
    for node in page.findall(nodes.raw):
        for name in re.findall(r'<a id="([\w-]+)">', node.astext()):
            known[name] = (0, name, name)


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.add_transform(LinksOutside)
    app.connect("doctree-read", tell_anchors)
