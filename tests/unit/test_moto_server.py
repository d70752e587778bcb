"""What is done to moto so that it behaves as S3 does: puts that race have one winner."""

from __future__ import annotations

import io
import threading
from typing import Any

import pytest

from omniray.coordinator.stress.moto_server import one_at_a_time


def test_a_request_is_carried_out_alone() -> None:
    lock, seen = threading.Lock(), []

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        seen.append(lock.locked())
        return [b""]

    one_at_a_time(app, lock)({"REQUEST_METHOD": "PUT", "wsgi.input": io.BytesIO()}, print)
    assert seen == [True]
    assert not lock.locked()


@pytest.mark.parametrize("facts", [{"CONTENT_LENGTH": "4"}, {"wsgi.input_terminated": True}])
def test_a_body_is_received_before_the_others_have_to_wait(facts: dict[str, Any]) -> None:
    lock, bodies = threading.Lock(), []

    class Body(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            assert not lock.locked()
            return super().read(size)

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        bodies.append(environ["wsgi.input"].read())
        return [b""]

    one_at_a_time(app, lock)({"REQUEST_METHOD": "PUT", "wsgi.input": Body(b"body"), **facts}, print)
    assert bodies == [b"body"]
