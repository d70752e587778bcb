"""A social graph of any size, made by Spark, with a known number of planted faults for each reason."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import Column
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = """\
node Person {
    name: String @key
    age: I32?
    role: enum(dev, ops)?
    email: String?
    @range(age, 0..150)
    @check(email, "@")
}
edge Knows: Person -> Person {
    since: Date?
    weight: F64?
    kind: enum(friend, colleague)?
    @unique(src, dst)
}
"""
FAULTY_SHARE = 200
"""One row in this many has each of the faults below."""

PERSON_FAULTS = ("bad_value", "range", "null", "enum", "check", "duplicate")
KNOWS_FAULTS = ("orphan of nobody", "orphan of a rejected node", "enum", "bad_value", "null", "unique")


@dataclass(frozen=True, slots=True)
class SocialGraph:
    """Some rows of each type, the first of them faulty, kind after kind."""

    people: int
    acquaintances: int

    @property
    def faulty_people(self) -> int:
        """How many rows have each of the faults."""
        return max(1, self.people // FAULTY_SHARE)

    @property
    def faulty_acquaintances(self) -> int:
        return max(1, self.acquaintances // FAULTY_SHARE)

    @property
    def planted(self) -> dict[str, dict[str, int]]:
        """How many rows must be rejected, by type and reason."""
        people, edges = self.faulty_people, self.faulty_acquaintances
        of_edges = dict.fromkeys(KNOWS_FAULTS[2:], edges)
        return {"Person": dict.fromkeys(PERSON_FAULTS, people), "Knows": {"orphan": 2 * edges, **of_edges}}

    @property
    def good(self) -> dict[str, int]:
        """How many rows must be committed, by type."""
        people = self.people - len(PERSON_FAULTS) * self.faulty_people
        return {"Person": people, "Knows": self.acquaintances - len(KNOWS_FAULTS) * self.faulty_acquaintances}

    def write(self, spark: SparkSession, folder: Path) -> Path:
        """Write both sources as Parquet, and the pipeline that loads them; returns the pipeline's file."""
        self._people(spark).write.parquet(str(folder / "people"))
        self._acquaintances(spark).write.parquet(str(folder / "knows"))
        file = folder / "pipeline.yml"
        file.write_text(PIPELINE)
        return file

    def _people(self, spark: SparkSession) -> DataFrame:
        row = F.col("id")
        fault = _Fault(row, self.faulty_people, PERSON_FAULTS)
        twin = _name(row + self.faulty_people)  # duplicates are the last kind, so the rows that they repeat are good
        name = F.when(fault.of("null"), F.lit(None)).when(fault.of("duplicate"), twin).otherwise(_name(row))
        age = F.when(fault.of("bad_value"), F.lit("old")).when(fault.of("range"), F.lit("151"))
        return spark.range(self.people).select(
            name.alias("name"),
            age.otherwise((row % 100).cast("string")).alias("age"),
            F.when(fault.of("enum"), F.lit("boss")).otherwise(F.lit("dev")).alias("role"),
            F.when(fault.of("check"), F.lit("nowhere")).otherwise(F.concat(_name(row), F.lit("@x.org"))).alias("email"),
            F.when(fault.of("duplicate"), F.lit(0)).otherwise(F.lit(1)).alias("version"),
        )

    def _acquaintances(self, spark: SparkSession) -> DataFrame:
        row, each = F.col("id"), self.faulty_acquaintances
        fault = _Fault(row, each, KNOWS_FAULTS)
        # Rows of the last kind repeat the first good ones.
        pair = F.when(fault.of("unique"), row + each).otherwise(row) - len(KNOWS_FAULTS) * each
        first, people = len(PERSON_FAULTS) * self.faulty_people, self.good["Person"]
        number = F.pmod(pair, F.lit(people))
        neighbour = F.pmod(number + 1 + F.floor(F.abs(pair) / people), F.lit(people))
        nobody = F.concat(F.lit("nobody "), row.cast("string"))
        source = F.when(fault.of("orphan of nobody"), nobody).when(fault.of("null"), F.lit(None))
        of_rejected = _name(row % self.faulty_people)
        target = F.when(fault.of("orphan of a rejected node"), of_rejected).otherwise(_name(neighbour + first))
        weight = F.when(fault.of("bad_value"), F.lit("heavy")).otherwise(F.lit("0.5"))
        return spark.range(self.acquaintances).select(
            source.otherwise(_name(number + first)).alias("a"),
            target.alias("b"),
            F.lit("2024-05-31").alias("since"),
            weight.alias("weight"),
            F.when(fault.of("enum"), F.lit("rival")).otherwise(F.lit("friend")).alias("kind"),
            F.when(fault.of("unique"), F.lit(1)).otherwise(F.lit(0)).alias("version"),
        )


@dataclass(frozen=True, slots=True)
class _Fault:
    """Which rows have which fault: `each` of them, kind after kind, from the first row on."""

    row: Column
    each: int
    kinds: tuple[str, ...]

    def of(self, kind: str) -> Column:
        first = self.kinds.index(kind) * self.each
        return (self.row >= first) & (self.row < first + self.each)


def _name(number: Column) -> Column:
    return F.concat(F.lit("person "), number.cast("string"))


PIPELINE = """\
graph: {uri: graph}
rejects: rejects
actor: social
sources:
  people: {format: parquet, path: people}
  acquaintances: {format: parquet, path: knows}
nodes:
  Person:
    from: people
    columns: {name: name, age: age, role: role, email: email}
    deduplicate: last by version
edges:
  Knows:
    from: acquaintances
    columns: {from: a, to: b, since: since, weight: weight, kind: kind}
    deduplicate: first by version
"""
