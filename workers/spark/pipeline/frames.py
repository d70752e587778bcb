"""Frames of a pipeline: sources mapped and cleaned as the file says, and validated against the types.

Every fault that Spark can find from names and types alone is found here, before any job runs, and reported with its
line of the file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, DataType, StringType, StructType

from omniray.engine.schema.types import Scalar, ScalarType
from omniray.workers.spark.pipeline.config import Clean, Format, Source
from omniray.workers.spark.pipeline.conforming import BY, conformed_schema, conforming
from omniray.workers.spark.pipeline.plan import TypePlan
from omniray.workers.spark.pipeline.yaml_nodes import Faults, Text
from omniray.workers.spark.types import accepts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_BLANKS = " \t\r\n\f\v"
_JAVA_CLASSES = re.compile(r"^(?:(?:\w+\.)+\w*(?:Exception|Error): (?=.))+")

_CATALYST = "org.apache.spark.sql.catalyst"
_CODE = (  # in whatever case, quoted or within a subquery: an expression is known by what Spark makes of it
    f"{_CATALYST}.expressions.CallMethodViaReflection",
    f"{_CATALYST}.expressions.TryReflect",
    f"{_CATALYST}.plans.logical.ScriptTransformation",
)

_CLEANED: Mapping[Clean, Callable[[Column], Column]] = {
    Clean.TRIM: lambda text: F.btrim(text, F.lit(_BLANKS)),
    Clean.COLLAPSE_SPACES: lambda text: F.regexp_replace(text, r"\s+", " "),
    Clean.LOWER: F.lower,
    Clean.UPPER: F.upper,
    Clean.EMPTY_TO_NULL: lambda text: F.nullif(text, F.lit("")),
}


def conformed_frames(spark: SparkSession, plans: Sequence[TypePlan], file: str) -> dict[str, DataFrame]:
    """For each type its valid and refused rows; raises `InputError` with the faulty lines."""
    faults = Faults(file)
    sources = {name: _read(spark, source, faults) for name, source in _sources(plans).items()}
    frames = {}
    for plan in plans:
        source = sources[plan.mapping.source.name]
        mapped = _mapped(source, plan, faults) if source is not None else None
        if mapped is not None:
            frames[plan.name] = _conformed(mapped, plan)
    faults.refuse()
    return frames


def _sources(plans: Sequence[TypePlan]) -> dict[str, Source]:
    return {plan.mapping.source.name: plan.mapping.source for plan in plans}


def _read(spark: SparkSession, source: Source, faults: Faults) -> DataFrame | None:
    reader = spark.read.format(source.format)
    if source.format is Format.CSV:
        reader = reader.option("header", source.header)
    if source.url is not None:
        place = {"dbtable": source.table} if source.table is not None else {"query": source.query}
        reader = reader.options(url=source.url, **place)
    reader = reader.options(**source.options)
    if source.schema is not None:
        try:
            reader = reader.schema(source.schema.value)
        except PySparkException as error:
            faults.add(source.schema.line, f"sources.{source.name}.schema: {sentence(error)}")
            return None
    try:
        return reader.load(list(source.paths)) if source.paths else reader.load()
    except SPARK_ERRORS as error:
        faults.add(source.line, f"sources.{source.name} can't be read: {sentence(error)}")
        return None


def _mapped(source: DataFrame, plan: TypePlan, faults: Faults) -> DataFrame | None:
    """The source's rows as columns of the type; None if an expression is faulty."""
    title, count = plan.mapping.title, len(faults.found)
    where, by = plan.mapping.where, plan.mapping.deduplicate.by
    if where is not None and not isinstance(_type(source, where, f"{title}.where", faults), BooleanType | None):
        faults.add(where.line, f"{title}.where is not a condition: write one that is true for the rows to keep")
    columns = [_column(source, plan, name, text, faults).alias(name) for name, text in plan.columns.items()]
    if by is not None and _type(source, by, f"{title}.deduplicate", faults) is not None:
        _analysed(lambda: source.sort(F.expr(by.value)), by, f"{title}.deduplicate", faults)
        columns.append(F.expr(by.value).alias(BY))
    if len(faults.found) > count:
        return None
    rows = source
    if where is not None:
        chosen = _analysed(lambda: source.where(F.expr(where.value)), where, f"{title}.where", faults)
        if chosen is None:
            return None
        rows = chosen
    return rows.select(columns)


def _column(source: DataFrame, plan: TypePlan, name: str, text: Text, faults: Faults) -> Column:
    """The expression of a column, with cleaning steps if it is text."""
    given = _type(source, text, f"{plan.mapping.title}.columns.{name}", faults)
    p = plan.type.property(name)
    wanted = ScalarType(Scalar.STRING) if p is None else p.type
    is_text = isinstance(given, StringType)
    if given is not None and not accepts(wanted, given) and not (is_text and p is not None):
        hint = "" if p is not None else f"; an id is text: cast({text} as string)"
        faults.add(text.line, f"{plan.name}.{name}: `{text}` is {given.simpleString()}, never {wanted}{hint}")
    column = F.lit(None) if given is None else F.expr(text.value)
    for step in plan.mapping.clean if is_text else ():
        column = _CLEANED[step](column)
    return column


def _type(source: DataFrame, text: Text, title: str, faults: Faults) -> DataType | None:
    """The type of an expression over each row of the source; None, and a fault, if Spark can't analyse it.

    It is analysed beside a column, where Spark allows no aggregate, and in a struct, where it allows nothing that makes
    several rows of one: each row of the source must give one row of the type.
    """
    beside = [F.col(f"`{name.replace('`', '``')}`") for name in source.columns if source.columns.count(name) == 1]
    found = _analysed(lambda: source.select(F.struct(F.expr(text.value)), *beside[:1]), text, title, faults)
    if found is None:
        return None
    inner = found.schema.fields[0].dataType
    assert isinstance(inner, StructType), "as it was asked for"
    if len(inner.fields) != 1:
        faults.add(text.line, f"{title}: `{text}` gives {len(inner.fields)} values: write an expression of one")
        return None
    return inner.fields[0].dataType


def _analysed(make: Callable[[], DataFrame], text: Text, title: str, faults: Faults) -> DataFrame | None:
    """A frame whose names and types Spark has analysed; None, and a fault, if the analysis fails."""
    try:
        frame = make()
        analysed = frame._jdf.queryExecution().analyzed().toJSON()
    except SPARK_ERRORS as error:
        faults.add(text.line, f"{title}: {sentence(error)}")
        return None
    if any(f'"class":"{name}' in analysed for name in _CODE):
        faults.add(
            text.line, f"{title}: `{text}` calls Java or runs a program (reflect, java_method, TRANSFORM); leave it out"
        )
        return None
    return frame


def _conformed(mapped: DataFrame, plan: TypePlan) -> DataFrame:
    by = mapped.schema[BY].dataType if BY in mapped.columns else None
    schema = conformed_schema(plan.type, by)
    return mapped.mapInArrow(conforming(plan.type, schema), schema)


SPARK_ERRORS = (PySparkException, Py4JJavaError)
"""Spark's own errors, and those that it passes on: of a database, of its driver, or of a file system."""


def sentence(error: PySparkException | Py4JJavaError) -> str:
    """The one line of a message that a user needs."""
    text = error.java_exception.toString() if isinstance(error, Py4JJavaError) else str(error)
    first = _JAVA_CLASSES.sub("", text.strip().partition("\n")[0])
    return first.partition(" SQLSTATE:")[0].rstrip(" ;.")
