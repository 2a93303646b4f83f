"""The managers' pages' words are the package's own: the same sizes and durations."""

import json
from pathlib import Path

import jupyterhub_gpu_reclaim
from jupyterhub_gpu_reclaim.common import text
from tests.support.ran import ran

STATIC = Path(jupyterhub_gpu_reclaim.__file__).parent / "service" / "web" / "static"
WORDS = STATIC / "words.js"
SIZES = [0, 999, 1_000, 9_940, 9_950, 412_000_000, 999_400_000, 999_600_000, 41.2e9]
#: Seconds; minutes are not told with their seconds here, so whole minutes.
TIMES = [0, 12, 59, 600, 3_540, 3_600, 3_660, 86_400, 172_740, 172_800, 176_400]


def test_sizes_and_durations_are_those_of_the_package() -> None:
    code = f"""
        import {{ duration, keyOf, nameOf, size }} from {json.dumps(WORDS.as_uri())};
        console.log(JSON.stringify([
          {json.dumps(SIZES)}.map(size),
          {json.dumps(TIMES)}.map(duration),
          [keyOf({{user: "ada"}}), keyOf({{user: "ada", server: "x"}})],
          [nameOf({{user: "ada", server: ""}}), nameOf({{user: "ada", server: "x"}})],
        ]));
    """
    done = ran(["node", "--input-type=module", "-"], input=code, timeout=60, check=True)
    assert json.loads(done.stdout) == [
        [text.size(one) for one in SIZES],
        [text.duration(one) for one in TIMES],
        ["ada/", "ada/x"],
        ["ada", "ada/x"],
    ]
