"""Expressions of a pipeline that would call Java or run a program are refused when the file is analysed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from omniray.workers.spark.pipeline.frames import _type
from omniray.workers.spark.pipeline.yaml_nodes import Faults, Text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")
CALL = "'java.lang.System', 'getProperty', 'user.name'"


def faults_of(spark: SparkSession, expression: str) -> list[str]:
    faults = Faults("p.yml")
    source = spark.createDataFrame([("ann", ["x"])], "name string, tags array<string>")
    _type(source, Text(expression, 7), "people.columns.name", faults)
    return [message for _, message in faults.found]


@pytest.mark.parametrize(
    "expression",
    [
        f"reflect({CALL})",
        f"REFLECT({CALL})",
        f"java_method({CALL})",
        f"try_reflect({CALL})",
        f"`reflect`({CALL})",
        f"reflect /* a word */ ({CALL})",
        f"upper(concat(name, coalesce(Java_Method({CALL}), '')))",
        f"transform(tags, x -> concat(x, reflect({CALL})))[0]",
        f"case when name = 'x' then reflect({CALL}) else name end",
        f"(select reflect({CALL}) from values (1) as t(a) limit 1)",
        f"exists(select 1 from values (1) as t(a) where reflect({CALL}) = 'x')",
        "(select max(b) from (select transform(a) using 'cat' as (b) from values ('1') as t(a)))",
    ],
)
def test_an_expression_that_reaches_java_or_a_program_is_refused(spark: SparkSession, expression: str) -> None:
    (fault,) = faults_of(spark, expression)
    assert "calls Java or runs a program" in fault


@pytest.mark.parametrize(
    "expression",
    ["upper(name)", "transform(tags, x -> upper(x))[0]", "'reflect(1)'", '\'"class":"x"\'', "name as reflect"],
)
def test_other_expressions_are_not(spark: SparkSession, expression: str) -> None:
    assert faults_of(spark, expression) == []
