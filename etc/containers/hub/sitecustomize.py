"""Run by each Python that has this folder in PYTHONPATH: the Hub's, in its pod.

Our packages come last: where the Hub's image has one of them, that one is taken, so
that nothing of the Hub's own is ever replaced by us.
"""

import site
from pathlib import Path

site.addsitedir(str(Path(__file__).with_name("packages")))
