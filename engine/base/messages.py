"""Messages between processes: MessagePack of an agreed shape, with a version, checked where it arrives.

A message is read by msgspec straight into its type: whatever has another shape is refused before anything else looks at
it. None is a pickle, so nothing that arrives can run code.

A sender says which `version` of the messages it speaks. A field that is added later has a default, and both sides pass
over fields that they don't know; what can't be understood that way gets the next version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from omniray.engine.base.errors import InputError

MISSHAPEN = (msgspec.DecodeError, ValueError, RecursionError, OverflowError)
"""What msgspec raises for data of another form."""


class Form:
    """The messages of one kind: their types, the versions that are understood, and the size of the largest.

    Forms are made when their module is imported: msgspec inspects a type on first use, and not for two threads at once.
    """

    def __init__(self, types: Any, versions: Sequence[int], bytes_max: int) -> None:
        self._decoder = msgspec.msgpack.Decoder(types)
        self._versions = versions
        self._bytes_max = bytes_max

    def encode(self, message: msgspec.Struct) -> bytes:
        """The message as bytes; raises `InputError` if the receiver would refuse it for its size."""
        encoded = encoded_message(message)
        self._refuse_large(len(encoded))
        return encoded

    def decode(self, data: bytes) -> Any:
        """The message in these bytes, which it may refer to; raises `InputError` for anything else."""
        self._refuse_large(len(data))
        try:
            message = self._decoder.decode(data)
        except MISSHAPEN as error:
            self._refuse_other_version(data)
            raise InputError(
                f"a message that does not have the form of version {self._versions[-1]}: {str(error)[:300]}"
            ) from error
        self._refuse_unknown(message.version)
        return message

    def _refuse_large(self, size: int) -> None:
        if size > self._bytes_max:
            raise InputError(f"a message of {size} bytes: at most {self._bytes_max} are taken")

    def _refuse_other_version(self, data: bytes) -> None:
        """Name the version of a message that is not understood, if that is the reason."""
        try:
            given = _VERSIONED.decode(data)
        except MISSHAPEN:
            return
        self._refuse_unknown(given.version)

    def _refuse_unknown(self, version: int) -> None:
        if version not in self._versions:
            known = ", ".join(map(str, self._versions))
            raise InputError(
                f"a message of version {version}, and this omniray understands {known}: use the same release of "
                "omniray on both sides, or two that follow each other",
                version=version,
            )


class _Versioned(msgspec.Struct, frozen=True):
    version: int


_VERSIONED = msgspec.msgpack.Decoder(_Versioned)


def encoded_message(message: msgspec.Struct) -> bytes:
    """The message as bytes, of whatever size."""
    return _ENCODER.encode(message)


def _plain(value: Any) -> Any:
    """What MessagePack has no form for: NumPy's values, and mappings and texts of other classes."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    return str(value)


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_plain)
