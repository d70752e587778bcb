"""A writer of the stress test that is a Spark application: its loads are transactions of frames.

python -m tests.spark.application URI STORAGE_OPTIONS ADDRESS SEED NUMBER HISTORY STEPS
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StructType

import omniray
from omniray.coordinator.stress.writer import run_writer
from omniray.spark import session, transaction
from omniray.workers.spark.types import spark_schema
from tests.spark.conftest import SETTINGS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ENDS = {"from": "src", "to": "dst"}


class SparkGraph:
    """A client whose loads go through Spark, but for strict ones, which a transaction of frames does not have."""

    def __init__(self, client: omniray.Client, spark: SparkSession) -> None:
        self._client, self._spark = client, spark

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def load(
        self, source: Sequence[dict[str, Any]], *, mode: str, expected_versions: Mapping[str, int] | None, txn_id: str
    ) -> omniray.WriteResult:
        if expected_versions is not None:
            return self._client.load(source, mode=mode, expected_versions=expected_versions, txn_id=txn_id)
        with transaction(self._client, mode=mode, txn_id=txn_id) as tx:
            for type, rows in rows_by_type(source).items():
                tx.write(self._frame(type, rows), type)
        return tx.result

    def _frame(self, type: str, rows: list[dict[str, Any]]) -> DataFrame:
        schema = spark_schema(self._client.schema.type(type))
        fields = [field for field in schema if field.name in rows[0]]
        values = [tuple(row[field.name] for field in fields) for row in rows]
        return self._spark.createDataFrame(values, StructType(fields))


def rows_by_type(records: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The records as plain rows."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for record in records:
        given = {_ENDS.get(name, name): record[name] for name in ("id", "from", "to") if name in record}
        found[record.get("type") or record["edge"]].append(given | record["data"])
    return found


def main() -> None:
    kind, uri, options, address, seed, number, history, steps = sys.argv[1:]
    with omniray.connect(uri, storage_options=json.loads(options), address=address, timeout_s=300.0) as client:
        graph = SparkGraph(client, session("omniray-stress", SETTINGS)) if kind == "spark" else client
        run_writer(graph, seed=int(seed), writer_no=int(number), history_path=history, ops=int(steps))


if __name__ == "__main__":
    main()
