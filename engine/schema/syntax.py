"""The schema language as text: what a `.pg` file says, before its meaning is checked.

`read_declarations` turns text into declarations that keep their lines; `parser.py` gives them their meaning.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lark import Token, v_args

from omniray.engine.schema.grammar import Builder, Language

LANGUAGE = Language(
    name="schema",
    grammar=Path(__file__).with_name("schema.lark"),
    words={
        "_INTERFACE": "'interface'",
        "_NODE": "'node'",
        "_EDGE": "'edge'",
        "_IMPLEMENTS": "'implements'",
        "_VECTOR": "'Vector'",
        "_ENUM": "'enum'",
        "TYPE_NAME": "a type name (first letter upper-case)",
        "PROPERTY_NAME": "a property name (first letter lower-case)",
        "SCALAR": "a type such as String or I64",
        "ENUM_VALUE": "an enum value",
        "ANNOTATION": "an annotation such as @key",
        "WORD": "a name",
        "NUMBER": "a number",
        "STRING": "a text in double quotes",
    },
    hints={
        "extends": "a node type takes over an interface with 'implements'",
        ";": "nothing ends with ';' here; properties are separated by white space",
    },
)


@dataclass(frozen=True, slots=True)
class Word:
    """A bare word among an annotation's arguments: a property's name, mostly."""

    text: str


@dataclass(frozen=True, slots=True)
class Bounds:
    """`low..high`, either of which may be missing."""

    low: int | float | None
    high: int | float | None


@dataclass(frozen=True, slots=True)
class Option:
    """`name=value` among an annotation's arguments."""

    name: str
    value: str | int | float | Word


Argument = str | int | float | Word | Bounds | Option


@dataclass(frozen=True, slots=True)
class WrittenAnnotation:
    """`@name(arguments)`; `arguments` is None where there are no parentheses."""

    name: str
    arguments: tuple[Argument, ...] | None
    line: int


@dataclass(frozen=True, slots=True)
class NamedType:
    """A scalar, or a list of one, by the name that is written."""

    name: str
    is_list: bool = False


@dataclass(frozen=True, slots=True)
class SizedVector:
    size: int | float


@dataclass(frozen=True, slots=True)
class InlineEnum:
    values: tuple[str, ...]


WrittenType = NamedType | SizedVector | InlineEnum


@dataclass(frozen=True, slots=True)
class WrittenProperty:
    name: str
    type: WrittenType
    nullable: bool
    line: int


Member = WrittenProperty | WrittenAnnotation


@dataclass(frozen=True, slots=True)
class InterfaceDeclaration:
    name: str
    members: tuple[Member, ...]
    line: int


@dataclass(frozen=True, slots=True)
class NodeDeclaration:
    name: str
    annotations: tuple[WrittenAnnotation, ...]
    implements: tuple[str, ...]
    members: tuple[Member, ...]
    line: int


@dataclass(frozen=True, slots=True)
class EdgeDeclaration:
    name: str
    source: str
    target: str
    annotations: tuple[WrittenAnnotation, ...]
    members: tuple[Member, ...]
    line: int


Declaration = InterfaceDeclaration | NodeDeclaration | EdgeDeclaration


def read_declarations(text: str) -> tuple[Declaration, ...]:
    """The declarations of a schema text in their order; raises `ParseError`."""
    declarations: tuple[Declaration, ...] = LANGUAGE.read(text, _Builder)
    return declarations


@v_args(inline=True)
class _Builder(Builder):
    def start(self, *declarations: Declaration) -> tuple[Declaration, ...]:
        return declarations

    def interface(self, name: Token, members: tuple[Member, ...]) -> InterfaceDeclaration:
        return InterfaceDeclaration(str(name), members, _line(name))

    def node(
        self,
        name: Token,
        annotations: tuple[WrittenAnnotation, ...],
        implements: tuple[str, ...] | None,
        members: tuple[Member, ...],
    ) -> NodeDeclaration:
        return NodeDeclaration(str(name), annotations, implements or (), members, _line(name))

    def edge(
        self,
        name: Token,
        source: Token,
        target: Token,
        annotations: tuple[WrittenAnnotation, ...],
        members: tuple[Member, ...] | None,
    ) -> EdgeDeclaration:
        return EdgeDeclaration(str(name), str(source), str(target), annotations, members or (), _line(name))

    def implements(self, *names: Token) -> tuple[str, ...]:
        return _texts(names)

    def body(self, *members: Member) -> tuple[Member, ...]:
        return members

    def property(self, name: Token, type: WrittenType, nullable: Token | None) -> WrittenProperty:
        return WrittenProperty(str(name), type, nullable is not None, _line(name))

    def scalar(self, name: Token) -> NamedType:
        return NamedType(str(name))

    def list(self, name: Token) -> NamedType:
        return NamedType(str(name), is_list=True)

    def vector(self, size: Token) -> SizedVector:
        return SizedVector(self._source.number(size))

    def enum(self, *values: Token) -> InlineEnum:
        return InlineEnum(_texts(values))

    def annotations(self, *annotations: WrittenAnnotation) -> tuple[WrittenAnnotation, ...]:
        return annotations

    def annotation(self, name: Token, arguments: tuple[Argument, ...] | None) -> WrittenAnnotation:
        return WrittenAnnotation(name.removeprefix("@"), arguments, _line(name))

    def arguments(self, *arguments: Argument) -> tuple[Argument, ...]:
        return arguments

    def option(self, name: Token, value: str | int | float | Word) -> Option:
        return Option(str(name), value)

    def bounds(self, low: int | float | None, high: int | float | None) -> Bounds:
        return Bounds(low, high)

    def word(self, token: Token) -> Word:
        return Word(str(token))


def _texts(tokens: Iterable[Token]) -> tuple[str, ...]:
    return tuple(str(token) for token in tokens)


def _line(token: Token) -> int:
    return token.line or 0
