"""Commit objects as JSON.

Fields that have their defaults are left out. An object without fields of a later omniray is read in two passes, and
written as it is; from one that has some, in itself or in a pin, commit or binding, they are taken along as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from types import GenericAlias
from typing import Any, TypeAlias, TypeVar

import msgspec

from omniray.engine.base.errors import FormatMismatch, InvariantViolation
from omniray.engine.line.commit_object import FORMAT, Binding, Commit, CommitObject, Pin

T = TypeVar("T", Pin, Commit, Binding)

_DEFAULTS = {
    known.name: known.default_factory() if known.default_factory is not MISSING else known.default
    for known in fields(CommitObject)
    if known.default is not MISSING or known.default_factory is not MISSING
}
_ALWAYS = frozenset(("format",))
_KNOWN = frozenset(known.name for known in fields(CommitObject)) - {"later"}


def encode(obj: CommitObject) -> bytes:
    """An object as JSON, without fields that have their defaults."""
    said = {
        name: value
        for name in _KNOWN_IN_ORDER
        if (value := getattr(obj, name)) != _DEFAULTS.get(name, MISSING) or name in _ALWAYS
    }
    return msgspec.json.encode({**(said if _is_plain(obj) else _flattened(said)), **obj.later})


_KNOWN_IN_ORDER = tuple(known.name for known in fields(CommitObject) if known.name in _KNOWN)


def _is_plain(obj: CommitObject) -> bool:
    """Whether no pin, commit or binding has fields of a later omniray."""
    return not (
        any(pin.later for pin in obj.pins.values())
        or any(commit.later for commit in obj.commits)
        or any(bound.later or any(pin.later for pin in bound.pins.values()) for bound in obj.bindings.values())
    )


def _flattened(value: Any) -> Any:
    """A value as it is encoded: fields of a later omniray, of this value or of one within, are among its own."""
    if isinstance(value, Mapping):
        return {key: _flattened(one) for key, one in value.items()}
    if isinstance(value, tuple):
        return [_flattened(one) for one in value]
    if isinstance(value, Pin | Commit | Binding):
        own = {known.name: _flattened(getattr(value, known.name)) for known in fields(value) if known.name != "later"}
        return {**own, **(value.later or {})}
    return value


class _Stamp(msgspec.Struct):
    format: int = 0


def _known_fields(of: type, **within: Any) -> Any:
    """A type that has the fields of another, reads no value but those given, and refuses unknown fields."""
    known = ((one.name, within.get(one.name, msgspec.Raw), None) for one in fields(of) if one.name != "later")
    return msgspec.defstruct(f"Known{of.__name__}", known, forbid_unknown_fields=True)


_KNOWN_PINS = GenericAlias(dict, (str, _known_fields(Pin)))
_KnownObject = _known_fields(
    CommitObject,
    format=int,
    pins=_KNOWN_PINS,
    commits=GenericAlias(list, _known_fields(Commit)),
    bindings=GenericAlias(dict, (str, _known_fields(Binding, pins=_KNOWN_PINS))),
)
_Fields: TypeAlias = dict[str, msgspec.Raw]


class _Parts(msgspec.Struct):
    """The fields of all parts of an object that may have unknown ones."""

    pins: dict[str, _Fields] = {}
    commits: list[_Fields] = []
    bindings: dict[str, _Fields] = {}


# Made here, by one thread: msgspec inspects a type on first use, and two threads that do so at once crash.
_read_stamp = msgspec.json.Decoder(_Stamp).decode
_read_object = msgspec.json.Decoder(CommitObject).decode
_read_known = msgspec.json.Decoder(_KnownObject).decode
_read_fields = msgspec.json.Decoder(_Fields).decode
_read_pin = msgspec.json.Decoder(Pin).decode
_read_parts = msgspec.json.Decoder(_Parts).decode


def decode(data: bytes, *, where: str) -> CommitObject:
    """Decode an object; one of another format is refused before any other field is read."""
    try:
        try:
            check_format(_read_known(data).format or 0, where=where)
        except msgspec.ValidationError:  # it has unknown fields, or is no object
            check_format(_read_stamp(data).format, where=where)
            return _with_unknown_fields(_read_object(data), data)
        return _read_object(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvariantViolation(
            f"{where} is not a commit object: {error}; keep the file and look at what wrote it", path=where
        ) from error


def _with_unknown_fields(found: CommitObject, data: bytes) -> CommitObject:
    parts = _read_parts(data)
    return replace(
        found,
        pins={key: _keeping(pin, parts.pins[key]) for key, pin in found.pins.items()},
        commits=tuple(_keeping(commit, own) for commit, own in zip(found.commits, parts.commits, strict=True)),
        bindings={name: _binding_keeping(one, parts.bindings[name]) for name, one in found.bindings.items()},
        later=_unknown(CommitObject, _read_fields(data)),
    )


def _binding_keeping(binding: Binding, own: Mapping[str, msgspec.Raw]) -> Binding:
    pins = {key: _read_fields(raw) for key, raw in _read_fields(own["pins"]).items()}
    kept = replace(binding, pins={key: _keeping(pin, pins[key]) for key, pin in binding.pins.items()})
    return _keeping(kept, own)


def _keeping(value: T, own: Mapping[str, msgspec.Raw]) -> T:
    """A pin, commit or binding with the unknown ones among its fields."""
    return replace(value, later=_unknown(type(value), own) or msgspec.UNSET)


def _unknown(of: type, found: Mapping[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    known = {one.name for one in fields(of) if one.name != "later"}
    return {name: raw.copy() for name, raw in found.items() if name not in known}


def encode_pin(pin: Pin) -> bytes:
    """A pin alone, as JSON."""
    return msgspec.json.encode(_flattened(pin) if pin.later else pin)


def decode_pin(data: bytes | memoryview) -> Pin:
    """The pin that `encode_pin` wrote, here or in a later omniray; raises `msgspec.DecodeError` for anything else."""
    return _keeping(_read_pin(data), _read_fields(data))


def pin_facts(pin: Pin) -> dict[str, Any]:
    """A pin alone, as `__manifest` holds it."""
    facts: dict[str, Any] = msgspec.json.decode(encode_pin(pin))
    return facts


def pin_of(facts: Mapping[str, Any]) -> Pin:
    """The pin that these are the facts of."""
    try:
        return decode_pin(msgspec.json.encode(facts))
    except msgspec.DecodeError as error:
        raise InvariantViolation(
            f"__manifest holds a pin that can't be read: {error}; restore it from a backup"
        ) from error


def check_format(found: int, *, where: str) -> None:
    """Refuse storage of another format: an older one with the steps to migrate, a newer one with 'upgrade'."""
    if found < FORMAT:
        raise FormatMismatch(
            f"{where} has format {found}, this omniray serves only {FORMAT}: export the graph with the omniray that "
            "wrote it (omniray export), create a new one with this version (omniray init) and load the export into it",
            found=found, served=FORMAT,
        )  # fmt: skip
    if found > FORMAT:
        raise FormatMismatch(
            f"{where} has format {found}, this omniray serves only {FORMAT}: upgrade omniray",
            found=found,
            served=FORMAT,
        )
