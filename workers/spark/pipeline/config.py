"""The configuration of a pipeline as values, checked as far as possible from its file alone.

    graph: {uri: ./social}
    branch: nightly
    rejects: ./rejects
    sources:
      people: {format: csv, path: people.csv}
    nodes:
      Person:
        from: people
        columns: {name: full_name, age: age}

Paths are relative to the file. `${NAME}` stands for an environment variable, in `options` and `storage_options` only:
secrets belong there, and these values are never shown or logged.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from omniray.engine.base.errors import InputError
from omniray.engine.base.suggestions import did_you_mean
from omniray.engine.line.branch_id import MAIN
from omniray.engine.rows.mode import Mode
from omniray.workers.spark.pipeline.yaml_nodes import Faults, Section, Text, compose

_KEYS = ("graph", "branch", "mode", "actor", "rejects", "sources", "nodes", "edges")
_NEEDED = {
    "graph": "say where the graph is",
    "rejects": "name a folder for the rows that are refused",
    "sources": "say what is read",
}
_MAPPING_KEYS = ("from", "where", "columns", "clean", "deduplicate")
_MODES = (Mode.APPEND, Mode.MERGE, Mode.OVERWRITE)
_VARIABLE = re.compile(r"\$\{([^}]*)\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_DEDUPLICATE = re.compile(r"(first|last|fail)(?:\s+by\s+(\S.*))?", re.DOTALL)


class Format(StrEnum):
    PARQUET = "parquet"
    CSV = "csv"
    JSON = "json"
    JDBC = "jdbc"


_KEYS_OF_FORMAT: Mapping[Format, tuple[str, ...]] = {
    Format.PARQUET: ("format", "path", "options"),
    Format.CSV: ("format", "path", "header", "schema", "options"),
    Format.JSON: ("format", "path", "schema", "options"),
    Format.JDBC: ("format", "url", "table", "query", "options"),
}


class Clean(StrEnum):
    """A cleaning step for all texts of a mapping; steps run in the listed order."""

    TRIM = "trim"
    COLLAPSE_SPACES = "collapse-spaces"
    LOWER = "lower"
    UPPER = "upper"
    EMPTY_TO_NULL = "empty-to-null"


class Keep(StrEnum):
    """Which of several rows with one key is kept; `FAIL` ends the run instead."""

    FIRST = "first"
    LAST = "last"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Deduplicate:
    """Which row of a key is kept, optionally in the order of an expression over the source's columns."""

    keep: Keep = Keep.FIRST
    by: Text | None = None


@dataclass(frozen=True, slots=True)
class GraphPlace:
    """Where the graph is."""

    uri: str
    line: int
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Source:
    """A source for Spark: files, or with `url` a table or a query of a database. `line` is its line in the file."""

    name: str
    format: Format
    line: int
    paths: tuple[str, ...] = ()
    url: str | None = None
    table: str | None = None
    query: str | None = None
    header: bool = True
    schema: Text | None = None
    options: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class TypeMapping:
    """How rows of a source become rows of a type: a Spark SQL expression for each property."""

    type: str
    title: str
    line: int
    source: Source
    where: Text | None
    columns: Mapping[str, Text]
    clean: tuple[Clean, ...] = ()
    deduplicate: Deduplicate = Deduplicate()


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A whole pipeline file."""

    file: str
    graph: GraphPlace
    mode: Mode
    actor: str
    rejects: str
    nodes: tuple[TypeMapping, ...]
    edges: tuple[TypeMapping, ...]
    branch: str = MAIN

    @property
    def mappings(self) -> tuple[TypeMapping, ...]:
        return (*self.nodes, *self.edges)


def read_pipeline(path: str | os.PathLike[str], environ: Mapping[str, str] = os.environ) -> Pipeline:
    """The pipeline that a file describes; raises `InputError` with one line for each fault."""
    try:
        text = Path(path).read_text("utf-8-sig")
    except OSError as error:
        raise InputError(f"can't read the pipeline {path}: {error.strerror}", file=str(path)) from error
    except UnicodeDecodeError as error:
        raise InputError(f"the pipeline {path} is not text in UTF-8; save it as UTF-8", file=str(path)) from error
    return parse_pipeline(text, file=str(path), folder=Path(path).parent, environ=environ)


def parse_pipeline(text: str, *, file: str, folder: Path, environ: Mapping[str, str]) -> Pipeline:
    """The pipeline that a text describes; its paths are relative to the folder."""
    faults = Faults(file)
    reader = _Reader(faults, folder.absolute(), environ)
    pipeline = reader.pipeline(Section(compose(text, faults), 1, "", faults, _KEYS))
    faults.refuse()
    return pipeline


class _Reader:
    """Reads section by section; after a fault it continues with a placeholder."""

    def __init__(self, faults: Faults, folder: Path, environ: Mapping[str, str]) -> None:
        self._faults, self._folder, self._environ = faults, folder, environ

    def pipeline(self, root: Section) -> Pipeline:
        for key, what in _NEEDED.items():
            if key not in root:
                root.lacks(key, what)
        actor, branch, rejects = root.text("actor"), root.text("branch"), self._rejects(root)
        sources = self._sources(root.section("sources"))
        nodes = self._mappings(root.section("nodes"), sources)
        edges = self._mappings(root.section("edges"), sources)
        if not root.section("nodes").names() and not root.section("edges").names():
            root.lacks("nodes", "say what becomes of the sources, under 'nodes' and 'edges'")
        return Pipeline(
            self._faults.file,
            self._graph(root.section("graph", ("uri", "storage_options"))),
            root.choice("mode", _MODES, Mode.APPEND),
            actor.value if actor else "",
            self._path(rejects),
            nodes,
            edges,
            branch.value if branch else MAIN,
        )

    def _rejects(self, root: Section) -> Text:
        return root.required("rejects", "./rejects") if "rejects" in root else Text("", root.line)

    def _graph(self, section: Section) -> GraphPlace:
        uri = section.required("uri", "./social")
        return GraphPlace(self._path(uri), uri.line, self._options(section, "storage_options"))

    def _sources(self, section: Section) -> dict[str, Source]:
        return {name: self._source(section, name) for name in section.names()}

    def _source(self, sources: Section, name: str) -> Source:
        told = sources.section(name)
        format = told.choice("format", tuple(Format), Format.PARQUET)
        section = sources.section(name, _KEYS_OF_FORMAT[format])
        if "format" not in told:
            told.lacks("format", f"one of {', '.join(Format)}")
        place = self._database(section) if format is Format.JDBC else {"paths": self._paths(section)}
        return Source(
            name=name,
            format=format,
            line=section.line_at("url" if format is Format.JDBC else "path"),
            header=section.flag("header", True),
            schema=section.text("schema"),
            options=self._options(section, "options"),
            **place,
        )

    def _paths(self, section: Section) -> tuple[str, ...]:
        paths = section.texts("path")
        if not paths or not all(path.value.strip() for path in paths):
            section.lacks("path", "give it, such as `path: people.csv`")
        return tuple(self._path(path) for path in paths)

    def _database(self, section: Section) -> dict[str, str | None]:
        url = section.required("url", "jdbc:postgresql://host/db")
        table, query = section.text("table"), section.text("query")
        self._refuse_variable(url)
        if (table is None) == (query is None):
            self._faults.add(section.line, f"{section.title} needs 'table' or 'query', one of the two")
        return {
            "url": url.value,
            "table": table.value if table else None,
            "query": query.value if query else None,
        }

    def _mappings(self, section: Section, sources: Mapping[str, Source]) -> tuple[TypeMapping, ...]:
        found = (self._mapping(section.section(name, _MAPPING_KEYS), name, sources) for name in section.names())
        return tuple(mapping for mapping in found if mapping is not None)

    def _mapping(self, section: Section, type: str, sources: Mapping[str, Source]) -> TypeMapping | None:
        source = section.required("from", next(iter(sources), "people"))
        if source.value and source.value not in sources:
            self._faults.add(source.line, f"no source {source.value!r}; {did_you_mean(source.value, sources)}")
        columns, given = section.pairs("columns"), section.section("columns")
        if not given.names() and given.is_mapping:
            section.lacks("columns", "write `property: expression` for each")
        clean = self._clean(section)
        deduplicate = self._deduplicate(section)
        if source.value not in sources:
            return None
        return TypeMapping(
            type, section.title, section.line, sources[source.value], section.text("where"), columns, clean, deduplicate
        )

    def _clean(self, section: Section) -> tuple[Clean, ...]:
        known = {str(step): step for step in Clean}
        found = []
        for text in section.texts("clean"):
            if text.value in known:
                found.append(known[text.value])
            else:
                near = did_you_mean(text.value, known)
                self._faults.add(text.line, f"no cleaning step {text.value!r} in {section.title}; {near}")
        return tuple(found)

    def _deduplicate(self, section: Section) -> Deduplicate:
        text = section.text("deduplicate")
        if text is None:
            return Deduplicate()
        found = _DEDUPLICATE.fullmatch(text.value.strip())
        keep = Keep(found[1]) if found else Keep.FIRST
        by = found[2] if found else None
        if found is None or (keep is Keep.LAST) > (by is not None) or (keep is Keep.FAIL and by is not None):
            forms = "first, first by EXPRESSION, last by EXPRESSION or fail"
            self._faults.add(text.line, f"{section.title}.deduplicate is {text.value!r}; write {forms}")
        return Deduplicate(keep, Text(by, text.line) if by else None)

    def _options(self, section: Section, key: str) -> dict[str, str]:
        return {name: self._filled(text) for name, text in section.pairs(key).items()}

    def _filled(self, text: Text) -> str:
        """An option's value with environment variables replaced; a value is never part of a message."""
        for name in _VARIABLE.findall(text.value):
            if not _NAME.fullmatch(name):
                self._faults.add(text.line, f"${{{name}}} is not a variable: write ${{NAME}}, of letters, digits and _")
            elif name not in self._environ:
                self._faults.add(text.line, f"the environment variable {name} is not set: export it before the run")
        return _VARIABLE.sub(lambda found: self._environ.get(found[1], ""), text.value)

    def _path(self, text: Text) -> str:
        """A URL unchanged, or a path resolved against the folder of the file."""
        self._refuse_variable(text)
        return text.value if _SCHEME.match(text.value) or not text.value else str(self._folder / text.value)

    def _refuse_variable(self, text: Text) -> None:
        if _VARIABLE.search(text.value):
            message = "${…} is filled in under options and storage_options alone; write the address itself"
            self._faults.add(text.line, message)
