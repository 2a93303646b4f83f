"""Keys of the kernel (keyctl(2)), for programs of the tests and for ourselves.

``CODE`` stands alone, so that it can be run in a session.
"""

from typing import Any

CODE = """
import ctypes, os
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_ADD, _, _KEYCTL = {"x86_64": (248, 249, 250), "aarch64": (217, 218, 219)}[
    os.uname().machine
]
SESSION = -3

def join_session_keyring():
    return _libc.syscall(_KEYCTL, 1, None)

def add_key(name, value):
    data = value.encode()
    made = _libc.syscall(_ADD, b"user", name.encode(), data, len(data), SESSION)
    assert made > 0, os.strerror(ctypes.get_errno())
    return made

def find_key(name):
    key = _libc.syscall(_KEYCTL, 10, SESSION, b"user", name.encode(), 0)
    if key < 0:
        return None
    value = ctypes.create_string_buffer(100)
    length = _libc.syscall(_KEYCTL, 11, key, value, 100)
    return value.raw[:length].decode() if length >= 0 else "unreadable"
"""
_scope: dict[str, Any] = {}
exec(CODE, _scope)
join_session_keyring = _scope["join_session_keyring"]
add_key = _scope["add_key"]
find_key = _scope["find_key"]
