"""Clients that give up soon: the SDKs' own patience would make each fault cost many seconds.

They still repeat a failed request by themselves, at least once, so that a fault that is met once stays hidden as it
would in earnest.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from omniray.engine.line import line_end as tip
from omniray.engine.store import s3 as store_s3
from tests.stores import Root

REQUEST_TIMEOUT_S = 0.5
TOO_LONG_MS = 1200  # for one request to be waited for, whatever else the machine is doing
FAR_TOO_LONG_MS = 4 * TOO_LONG_MS  # for all of its repetitions, and for Phase C to wait for a clear answer

# In the order in which they multiply: requests of one read, of Lance's retry layer, and of the HTTP client below, which
# is the same for Lance and for the store.
_CLIENT = {
    "download_retry_count": "0",
    "lance_aimd_max_retries": "0",
    "client_max_retries": "1",
    "timeout": f"{REQUEST_TIMEOUT_S:g}s",
}


def impatient(root: Root) -> Root:
    """The same place for clients that give up soon."""
    return root._replace(storage_options={**root.storage_options, **_CLIENT})


@contextmanager
def impatience() -> Iterator[None]:
    """S3 stores that are opened here give up soon, and so does Phase C on an answer that stays unclear."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(store_s3, "READ_TIMEOUT_S", REQUEST_TIMEOUT_S))
        stack.enter_context(patch.object(store_s3, "BACKOFF_MAX_S", store_s3.BACKOFF_FIRST_S))
        stack.enter_context(patch.object(tip, "UNCLEAR_TIMEOUT_S", 2 * REQUEST_TIMEOUT_S))
        yield
