"""Programs that reserve terabytes of addresses come back."""

import shutil
import subprocess
import time

import pytest

#: It uses both ends of what AddressSanitizer reserves for the heap's shadow.
PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(void) {
    char *block = malloc(1 << 20);
    char line[9];
    memset(block, 65, 1 << 20);
    puts("ready");
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) return 1;
    free(malloc(100));
    printf("%c%c\n", block[0], block[(1 << 20) - 1]);
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) return 1;
    volatile char *gone = block;
    free(block);
    return gone[0];  /* what it is for */
}
"""


def test_program_with_address_sanitizer_comes_back_and_still_finds_faults(
    places, engine, wait_for, tmp_path
):
    """Its shadow has 15 TB in one area: CRIU crashed in every return."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    program = tmp_path / "program"
    build = subprocess.run(
        ["gcc", "-fsanitize=address", "-x", "c", "-", "-o", program],
        input=PROGRAM.encode(),
        capture_output=True,
        check=False,
    )
    if build.returncode:
        pytest.skip(f"gcc has no AddressSanitizer: {build.stderr.decode()}")
    out = tmp_path / "out"
    world = places.world()
    world(f"out = open({str(out)!r}, 'w')")
    world(
        f"program = subprocess.Popen([{str(program)!r}], stdin=subprocess.PIPE,"
        " stdout=out, stderr=out)"
    )
    wait_for(lambda: "ready" in out.read_text())
    for _ in range(2):
        begun = time.monotonic()
        world = engine.cycle(world, places)
        assert time.monotonic() - begun < 15
    world("program.stdin.write(b'1\\n'); program.stdin.flush()")
    wait_for(lambda: "AA" in out.read_text())
    world("program.stdin.write(b'2\\n'); program.stdin.flush()")
    wait_for(lambda: "heap-use-after-free" in out.read_text())
