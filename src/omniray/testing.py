"""omniray for your own tests: a store, a graph with a coordinator, faults, a recorder and a checker of histories.

Needs `omniray[testing]`. With `pytest_plugins = ["omniray.testing"]` in a `conftest.py` pytest finds the fixtures,
whose names begin with `omniray_`; everything works without pytest's help, too.

PYTEST_DONT_REWRITE: pytest would warn if a `conftest.py` imports this module before it is loaded as a plugin.
"""

from importlib.util import find_spec

if _missing := [name for name in ("moto", "pytest") if find_spec(name) is None]:
    raise ImportError(f"{' and '.join(_missing)} not installed: pip install 'omniray[testing]'")

from omniray.coordinator.stress.fault_proxy import FaultProxy
from omniray.coordinator.stress.fault_proxy import running_proxy as fault_proxy
from omniray.coordinator.stress.list_checker import check_lists
from omniray.coordinator.stress.moto_server import Bucket, new_bucket, s3_bucket, s3_server
from omniray.coordinator.stress.recorder import Recorder, export_edn, read_recorded
from omniray.coordinator.stress.request_faults import RequestFault, Seen, StoreFault, Weather
from omniray.coordinator.stress.transactions import Append, Event, Read
from omniray.coordinator.stress.violation import ListRule, Verdict, Violation
from omniray.coordinator.testing.fixtures import (
    omniray_bucket,
    omniray_fault_proxy,
    omniray_graph,
    omniray_s3,
    omniray_schema,
)
from omniray.coordinator.testing.served_graph import ServedGraph, served_graph

__all__ = [
    "Append",
    "Bucket",
    "Event",
    "FaultProxy",
    "ListRule",
    "Read",
    "Recorder",
    "RequestFault",
    "Seen",
    "ServedGraph",
    "StoreFault",
    "Verdict",
    "Violation",
    "Weather",
    "check_lists",
    "export_edn",
    "fault_proxy",
    "new_bucket",
    "omniray_bucket",
    "omniray_fault_proxy",
    "omniray_graph",
    "omniray_s3",
    "omniray_schema",
    "read_recorded",
    "s3_bucket",
    "s3_server",
    "served_graph",
]
