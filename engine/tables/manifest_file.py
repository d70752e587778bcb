"""The bytes of a Lance manifest, from which a handle is made without a request."""

from __future__ import annotations

import struct

from omniray.engine.base.errors import InvariantViolation

_MAGIC = b"LANC"
_FOOTER_BYTES = 16  # the position of the manifest, the format's version, the magic


def serialised(manifest: bytes, *, where: str) -> bytes:
    """The manifest itself in the bytes of its file, which may hold other sections before it."""
    try:
        (position,) = struct.unpack_from("<Q", manifest, len(manifest) - _FOOTER_BYTES)
        (length,) = struct.unpack_from("<I", manifest, position)
    except struct.error as error:
        raise InvariantViolation(f"{where} is not a Lance manifest; restore it from a backup", path=where) from error
    found = manifest[position + 4 : position + 4 + length]
    if not manifest.endswith(_MAGIC) or len(found) != length:
        raise InvariantViolation(f"{where} is not a Lance manifest; restore it from a backup", path=where)
    return found
