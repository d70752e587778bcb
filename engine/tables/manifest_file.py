"""The bytes of a Lance manifest, from which a handle is made, and its indexes are told, without a request."""

from __future__ import annotations

import struct

from omniray.engine.base.errors import InvariantViolation

_MAGIC = b"LANC"
_FOOTER_BYTES = 16  # the position of the manifest, the format's version, the magic
_INDEX_SECTION = 6  # the field of the manifest that says where its indexes are described in the file


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


def index_section(manifest: bytes, *, where: str) -> bytes:
    """The description of a version's indexes in the bytes of its manifest's file, empty if it has none.

    A version that leaves the indexes as they are has the same description as the one before.
    """
    try:
        position = _number(serialised(manifest, where=where), _INDEX_SECTION)
        if position is None:
            return b""
        (length,) = struct.unpack_from("<I", manifest, position)
    except (struct.error, IndexError, ValueError) as error:
        raise InvariantViolation(f"{where} is not a Lance manifest; restore it from a backup", path=where) from error
    return manifest[position + 4 : position + 4 + length]


def _number(message: bytes, field: int) -> int | None:
    """The value of a field of a protobuf message that holds a number; None if it is not there."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        match tag & 7:
            case 0:
                value, at = _varint(message, at)
                if tag >> 3 == field:
                    return value
            case 1:
                at += 8
            case 2:
                length, at = _varint(message, at)
                at += length
            case 5:
                at += 4
            case kind:
                raise ValueError(f"a field of kind {kind}")
    return None


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at a position, and the position behind it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
