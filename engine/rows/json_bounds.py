"""How much memory a JSON text would take decoded, told before it is: `[[],[],…` takes fifty times its own size."""

from __future__ import annotations

import numpy as np

DECODED_BYTES_MAX = 256 << 20
_LOOKED_AT_BYTES = 1 << 20  # a shorter text stays far below the limit whatever it holds
_CONTAINER_BYTES, _VALUE_BYTES = 128, 40


def too_many_values(text: bytes) -> str | None:
    """The reason to refuse a JSON text for what it would take in memory, if there is one."""
    if len(text) <= _LOOKED_AT_BYTES or _decoded_bytes(text) <= DECODED_BYTES_MAX:
        return None
    if _decoded_bytes(_without_strings(text)) <= DECODED_BYTES_MAX:  # most of its commas and brackets are text
        return None
    return f"it has so many values that it takes more than {DECODED_BYTES_MAX >> 20} MiB in memory; split it"


def _decoded_bytes(text: bytes) -> int:
    return _CONTAINER_BYTES * (text.count(b"[") + text.count(b"{")) + _VALUE_BYTES * text.count(b",")


def _without_strings(text: bytes) -> bytes:
    bytes_ = np.frombuffer(text.replace(rb"\\", b"").replace(rb"\"", b""), np.uint8)
    is_within = np.logical_xor.accumulate(bytes_ == ord('"'))
    return bytes_[~is_within].tobytes()
