"""Parses text with a grammar, and says in plain words where it is wrong.

A `Language` is a lark grammar file and the words that its errors use. Whatever the text, reading it gives a value or
raises a `ParseError`, or what the language's builder raises about the meaning: no lark exception gets out. The grammars
are flat, so that no text can exhaust the stack.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from lark import Lark, Token, Transformer, v_args
from lark.exceptions import UnexpectedInput, UnexpectedToken, VisitError
from lark.lexer import PatternStr

from omniray.engine.base.errors import ParseError

TEXT_BYTES_MAX = 1 << 20
SOURCE_LINE_MAX = 400
EXPECTED_MAX = 6
# The widest integers that a property can hold: I64 below, U64 above.
INTEGER_MIN, INTEGER_MAX = -(1 << 63), (1 << 64) - 1
INTEGER_DIGITS_MAX = 40

_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)")
_FOUND = re.compile(r"[A-Za-z0-9_]{1,40}|.", re.DOTALL)


def is_unicode(text: str) -> bool:
    """Whether the text can be stored: half of a surrogate pair is a Python string, but no character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Source:
    """A text being parsed: makes errors for its places, and reads its literals."""

    text: str

    def fault(self, message: str, at: int, expected: tuple[str, ...] = ()) -> ParseError:
        """The error for the character at an offset."""
        start = self.text.rfind("\n", 0, at) + 1
        end = self.text.find("\n", at)
        written = self.text[start : end if end >= 0 else len(self.text)].rstrip()
        # Tabs would move the caret, control characters would reach the reader's terminal, and a line of a megabyte
        # would bury the message.
        shown = "".join(c if c.isprintable() else " " for c in written) if len(written) <= SOURCE_LINE_MAX else ""
        line = self.text.count("\n", 0, start) + 1
        return ParseError(message, line=line, column=at - start + 1, source_line=shown, expected=expected)

    def fault_at(self, token: Token, message: str) -> ParseError:
        return self.fault(message, token.start_pos or 0)

    def number(self, token: Token) -> int | float:
        """The number as written; one that no property could hold is refused."""
        if any(c in token for c in ".eE"):
            real = float(token)
            if math.isinf(real):
                raise self.fault_at(token, "this number is too large for a 64-bit float")
            return real
        # Python refuses to read integers of thousands of digits, with an error of its own.
        if len(token) > INTEGER_DIGITS_MAX or not INTEGER_MIN <= (whole := int(token)) <= INTEGER_MAX:
            raise self.fault_at(token, "this number does not fit in 64 bits")
        return whole

    def string(self, token: Token) -> str:
        """The text between the quotes, its escapes resolved as in JSON."""
        for escape in _ESCAPE.finditer(token):
            code = escape[1]
            if code[0] not in '"\\/bfnrtu' or code == "u":
                at = (token.start_pos or 0) + escape.start()
                raise self.fault(rf"\{code} is not an escape; for a backslash write \\", at)
        value: str = json.loads(str(token), strict=False)
        if not is_unicode(value):
            raise self.fault_at(token, "this text holds half of a surrogate pair, which is not a character")
        return value


@v_args(inline=True)
class Builder(Transformer[Token, Any]):
    """Makes the values of a text: each method that of the grammar's rule of the same name."""

    def __init__(self, source: Source) -> None:
        super().__init__()
        self._source = source

    def string(self, token: Token) -> str:
        return self._source.string(token)

    def number(self, token: Token) -> int | float:
        return self._source.number(token)


@dataclass(frozen=True)
class Language:
    """A grammar, what its terminals are called in messages, and hints about words that are met in the wrong place."""

    name: str
    grammar: Path
    words: Mapping[str, str]
    hints: Mapping[str, str]

    @cached_property
    def lark(self) -> Lark:
        return Lark.open(str(self.grammar), parser="lalr", maybe_placeholders=True)

    def read(self, text: str, builder: Callable[[Source], Builder]) -> Any:
        """What the builder makes of the text."""
        source = Source(text.removeprefix("\ufeff"))
        self._refuse_unreadable(source)
        try:
            return builder(source).transform(self.lark.parse(source.text))
        except UnexpectedInput as error:
            raise self._fault(source, error) from None
        except VisitError as error:
            raise error.orig_exc from None

    def describe(self, terminal: str) -> str:
        """What a terminal is called in a message."""
        if terminal == "$END":
            return "the end of the text"
        pattern = self.lark.get_terminal(terminal).pattern
        return f"'{pattern.value}'" if isinstance(pattern, PatternStr) else self.words[terminal]

    def _refuse_unreadable(self, source: Source) -> None:
        if len(source.text) > TEXT_BYTES_MAX or len(source.text.encode(errors="surrogatepass")) > TEXT_BYTES_MAX:
            raise ParseError(
                f"a {self.name} of more than {TEXT_BYTES_MAX} bytes; split it or make it smaller",
                line=1, column=1, source_line="",
            )  # fmt: skip
        try:
            source.text.encode()
        except UnicodeEncodeError as error:
            raise source.fault("half of a surrogate pair, which is not a character", error.start) from None

    def _fault(self, source: Source, error: UnexpectedInput) -> ParseError:
        expected = self._expected(error)
        if isinstance(error, UnexpectedToken) and error.token.type == "$END":
            return source.fault("the text ends too early", len(source.text.rstrip()), expected)
        at = error.pos_in_stream or 0
        if hint := self._hint(source.text, at):
            return source.fault(hint, at)
        found = _FOUND.match(source.text, at)
        return source.fault(f"unexpected {found[0] if found else ''!r}", at, expected)

    def _hint(self, text: str, at: int) -> str | None:
        """The message for a mistake that a list of expected tokens would not explain."""
        if text[at] == "#":
            return "'#' begins no comment; write // to the end of the line, or /* between these */"
        if text.startswith("/*", at):
            return "this comment has no end; close it with */"
        if text[at] == "'":
            return "texts are written in double quotes"
        if text[at] == '"' and not _STRING.match(text, at):
            return r"this text has no closing quote on its line; a line break inside a text is written \n"
        found = _FOUND.match(text, at)
        return self.hints.get(found[0]) if found else None

    def _expected(self, error: UnexpectedInput) -> tuple[str, ...]:
        terminals: set[str] = error.interactive_parser.accepts()  # type: ignore[no-untyped-call]
        if len(terminals) > 1:
            terminals.discard("$END")
        described = sorted({self.describe(terminal) for terminal in terminals})
        return tuple(described[:EXPECTED_MAX])
