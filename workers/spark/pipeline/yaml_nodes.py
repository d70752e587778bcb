"""Reads a YAML text key by key, so that all its faults are reported at once, each with its line.

The nodes of the text are kept, not the values that YAML would make of them: `on` is a name, `1` is an expression, and
a duplicate key is detected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import yaml

from omniray.engine.base.errors import InputError
from omniray.engine.base.suggestions import did_you_mean
from omniray.engine.schema.grammar import TEXT_BYTES_MAX

FAULTS_SHOWN_MAX = 20
_NULL, _MERGE = "tag:yaml.org,2002:null", "tag:yaml.org,2002:merge"
_FLAGS: Mapping[str, bool] = {"true": True, "yes": True, "false": False, "no": False}

Option = TypeVar("Option", bound=str)


@dataclass(frozen=True, slots=True)
class Text:
    """A text and its line."""

    value: str
    line: int

    def __str__(self) -> str:
        return self.value


@dataclass(slots=True)
class Faults:
    """The faults of a file, by line; reading continues after a fault, so that all are reported at once."""

    file: str
    found: list[tuple[int, str]] = field(default_factory=list)

    def add(self, line: int, message: str) -> None:
        if (line, message) not in self.found:
            self.found.append((line, message))

    def refuse(self) -> None:
        """Raise an error with one line for each fault, if there are any."""
        if not self.found:
            return
        found = sorted(self.found, key=lambda fault: fault[0])
        lines = [f"{self.file}:{line}: {message}" for line, message in found]
        hidden = len(lines) - FAULTS_SHOWN_MAX
        shown = lines[:FAULTS_SHOWN_MAX] + ([f"and {hidden} more"] if hidden > 0 else [])
        raise InputError("\n".join(shown), file=self.file, lines=[line for line, _ in found])


class Section:
    """A mapping of the text. Only the given `keys` are allowed; without them, its keys are names that users choose."""

    def __init__(self, node: yaml.Node | None, line: int, title: str, faults: Faults, keys: Sequence[str] = ()) -> None:
        self.title, self.line, self.faults = title, line, faults
        self._values: dict[str, yaml.Node] = {}
        self._lines: dict[str, int] = {}
        self.is_mapping = node is None or isinstance(node, yaml.MappingNode) or _is_null(node)
        self._is_clear = node is not None  # in a missing section, missing keys are not reported
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                self._take(key, value, keys)
        elif node is not None and not _is_null(node):
            self._is_clear = False
            faults.add(line_of(node), f"{self} is not a mapping: write `key: value`, one below the other")

    def __str__(self) -> str:
        return self.title or "the pipeline"

    def _take(self, key: yaml.Node, value: yaml.Node, keys: Sequence[str]) -> None:
        line = line_of(key)
        if key.tag == _MERGE:
            self._is_clear = False
            self.faults.add(line, f"a merge key (<<) stands in {self}: write out what it would bring")
        elif not isinstance(key, yaml.ScalarNode):
            self.faults.add(line, f"a key of {self} is not a plain name: write `key: value`")
        elif keys and key.value not in keys:
            self._is_clear = False
            self.faults.add(line, f"unknown key {key.value!r} in {self}; {did_you_mean(key.value, keys)}")
        elif key.value in self._lines:
            self.faults.add(line, f"{key.value!r} stands twice in {self}; keep one")
        else:
            self._lines[key.value] = line
            # A known key without a value counts as missing; a user's name without one is reported where it is read.
            if not keys or not _is_null(value):
                self._values[key.value] = value

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def names(self) -> list[str]:
        return list(self._values)

    def line_at(self, key: str) -> int:
        """The line of a key, or of the section if the key is missing."""
        return self._lines.get(key, self.line)

    def inner(self, key: str) -> str:
        """The full name of a key of this section."""
        return f"{self.title}.{key}" if self.title else key

    def text(self, key: str) -> Text | None:
        """A scalar as it is written."""
        node = self._values.get(key)
        if node is None:
            return None
        return self._scalar(node, self.inner(key))

    def lacks(self, key: str, advice: str) -> None:
        """Report that a key is missing, unless an unknown key of the section may have been meant."""
        if self._is_clear:
            self.faults.add(self.line_at(key), f"{self} lacks {key!r}: {advice}")

    def required(self, key: str, such_as: str) -> Text:
        """A required scalar; if it is missing, that is reported and an empty text returned."""
        found = self.text(key)
        if found is not None and found.value.strip():
            return found
        if found is not None or key not in self:
            self.lacks(key, f"give it, such as `{key}: {such_as}`")
        return Text("", self.line)

    def choice(self, key: str, options: Sequence[Option], default: Option) -> Option:
        """One of the given options."""
        found = self.text(key)
        if found is None:
            return default
        chosen = next((option for option in options if option == found.value), None)
        if chosen is None:
            known = ", ".join(options)
            self.faults.add(found.line, f"{self.inner(key)} is {found.value!r}; it is one of {known}")
        return default if chosen is None else chosen

    def flag(self, key: str, default: bool) -> bool:
        found = self.text(key)
        if found is None:
            return default
        if found.value.lower() not in _FLAGS:
            self.faults.add(found.line, f"{self.inner(key)} is {found.value!r}; write true or false")
        return _FLAGS.get(found.value.lower(), default)

    def texts(self, key: str) -> tuple[Text, ...]:
        """One scalar, or a list of them."""
        node = self._values.get(key)
        items = node.value if isinstance(node, yaml.SequenceNode) else [] if node is None else [node]
        found = (self._scalar(item, self.inner(key)) for item in items)
        return tuple(text for text in found if text is not None)

    def pairs(self, key: str) -> dict[str, Text]:
        """A mapping of names to scalars."""
        inner = self.section(key)
        return {name: text for name in inner.names() if (text := inner.text(name)) is not None}

    def section(self, key: str, keys: Sequence[str] = ()) -> Section:
        """A mapping below this one; an empty one if there is none."""
        return Section(self._values.get(key), self.line_at(key), self.inner(key), self.faults, keys)

    def _scalar(self, node: yaml.Node, title: str) -> Text | None:
        if isinstance(node, yaml.ScalarNode) and not _is_null(node):
            return Text(node.value, line_of(node))
        self.faults.add(line_of(node), f"{title} is not a text: give one value, in quotes if it holds any of : # {{ [")
        return None


def compose(text: str, faults: Faults) -> yaml.Node:
    """The root node of a text, an empty mapping if it is empty; raises `InputError` with the line if it is not YAML."""
    if len(text) > TEXT_BYTES_MAX:
        raise InputError(f"{faults.file}: more than {TEXT_BYTES_MAX} characters; split the pipeline", file=faults.file)
    root: yaml.Node | None = None
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        faults.add(mark.line + 1 if mark else 1, f"no YAML: {_said(error)}")
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        faults.add(line, f"no YAML: the character #x{error.character:04x} can't stand in it")
    except RecursionError:
        faults.add(1, "no pipeline: it is nested too deep")
    faults.refuse()
    return yaml.MappingNode("tag:yaml.org,2002:map", []) if root is None else root


def _said(error: yaml.MarkedYAMLError) -> str:
    """The message of a YAML error; for some, the context is the first half of the sentence."""
    problem, context = error.problem or "", error.context or ""
    return f"{context}, {problem}" if problem.startswith("but ") else problem or context


def line_of(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == _NULL and node.value in ("", "~", "null", "Null", "NULL")
