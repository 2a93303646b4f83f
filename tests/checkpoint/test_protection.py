"""Protection of memory as smaps tells it; not every machine has every kind."""

import pytest

from jupyterhub_gpu_reclaim.checkpoint.kinds.protection import unsupported

AREA = """{start:x}000-{end:x}000 {mode} 00000000 00:00 0{name}
Size:                  4 kB
THPeligible:           0
{key}VmFlags: {flags}
"""
KEY = "ProtectionKey:         {}\n"
ANON = "rd wr mr mw me ac"


def area(mode="rw-p", name="", key=None, flags=ANON, start=0x7F00):
    name = f"                     {name}" if name else " "
    key = "" if key is None else KEY.format(key)
    return AREA.format(
        mode=mode, name=name, key=key, flags=flags, start=start, end=start + 1
    )


@pytest.mark.parametrize(
    ("areas", "kinds"),
    [
        ([], []),
        ([area(), area(key=0)], []),
        ([area(key=1)], ["memory with a protection key (pkey_mprotect)"]),
        ([area("--xp", key=1)], []),
        (
            [area("--xp", key=1), area(key=2), area(key=15)],
            ["memory with a protection key"],
        ),
        ([area(flags="rd mr sl me "), area()], ["sealed memory (mseal)"]),
        ([area(flags="rd mr me sl"), area()], ["sealed memory (mseal)"]),
        ([area("r-xp", "[vdso]", flags="rd ex mr mw me de sl ")], []),
        ([area("r--p", "[vvar_vclock]", flags="rd mr pf io de dd sl ")], []),
        ([area("--xp", "[uprobes]")], ["uprobes: it is traced"]),
        ([area("rw-p", "/home/x sl\n[uprobes]")], []),
        ([area("r--p", "[anon:mine]", flags="rd sl")], ["sealed memory (mseal)"]),
        ([area("r--p", "[anon:[vdso]]", flags="rd sl")], ["sealed memory (mseal)"]),
    ],
)
def test_kinds_that_are_told(areas, kinds):
    found = unsupported("".join(areas))
    assert len(found) == len(kinds)
    assert all(map(str.startswith, found, kinds))
