"""The connections of a process to one door: HTTP requests, each on a connection that waits for nobody else's.

A connection is kept for the next request. Whether a request that failed has reached the coordinator decides what may be
said of it: nothing was sent where no connection could be made; else its fate is unknown.
"""

from __future__ import annotations

import contextlib
import copy
import http.client
import select
import socket
import threading
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from omniray.coordinator.door import calls
from omniray.coordinator.door.answers import decode_reply
from omniray.coordinator.door.calls import Call, StageTerms
from omniray.coordinator.door.certificate import client_context
from omniray.coordinator.door.paths import CALL, JSON, LINE, NEWEST, PACKED, PLACE, STAGE, WRITE
from omniray.coordinator.door.record import FoundDoor
from omniray.coordinator.door.requests import encode_request
from omniray.coordinator.rounds.conflicts import WriteAnswer
from omniray.engine.base.errors import InputError, OmnirayError, OutcomeUnknown, Unreachable
from omniray.engine.writes.write_requests import Request

CONNECT_TIMEOUT_S = 5.0
IDLE_S = 30.0
ANSWER_S_MAX = 24 * 60 * 60.0
"""The longest wait for one answer: a socket takes no time-out without end."""


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    kind: str
    body: bytes


class _NotSent(Exception):
    """No connection could be made, so the request has not reached anybody."""


class _Unanswered(Exception):
    """The request was sent, at least in part, and no whole answer came."""


class Wire:
    """The connections to one door. Threads may share it; `newest` is the highest number of the line that it told."""

    def __init__(self, door: FoundDoor, line: str, newest: int) -> None:
        self.url, self.newest = door.record.url, newest
        parts = urlsplit(self.url)
        self._host, self._port = parts.hostname or "", parts.port
        self._context = client_context(door.record.certificate) if parts.scheme == "https" else None
        self._headers = {"Authorization": f"Bearer {door.record.secret}", PLACE: door.place, LINE: line}
        self._idle: list[http.client.HTTPConnection] = []  # the one used last is used next
        self._lock, self._is_closed = threading.Lock(), False
        self._heard_at = time.monotonic()
        self.root, self._beside = self, dict[str, Wire]()

    def __repr__(self) -> str:
        return f"Wire({self.url!r})"

    @property
    def has_paused(self) -> bool:
        """Whether nothing was heard for so long that `newest` may be old, and connections be closed."""
        return time.monotonic() - self._heard_at > IDLE_S

    def on(self, line: str) -> Wire:
        """The wire for another branch: over the same connections, with a `newest` of its own; `root` is this one."""
        with self._lock:
            if line not in self._beside:
                other = copy.copy(self)
                other._headers, other.newest = {**self._headers, LINE: line}, 0
                self._beside[line] = other
            return self._beside[line]

    def write(self, request: Request, timeout_s: float) -> WriteAnswer:
        """Send a write and wait for its answer; an error is raised."""
        txn_id = request.header.commit_id
        try:
            answer = self._ask(WRITE, encode_request(request), PACKED, timeout_s)
        except _Unanswered as error:
            unknown = f"no answer to write {txn_id} from the coordinator at {self.url}: {error}"
            raise OutcomeUnknown(unknown, txn_id=txn_id) from error
        if answer.kind != PACKED:  # it was refused before it was read
            raise calls.decode_error(answer.body, "write")
        try:
            reply = decode_reply(answer.body)
        except InputError as error:
            unread = f"the answer to write {txn_id} from the coordinator at {self.url} can't be read: {error}"
            raise OutcomeUnknown(unread, txn_id=txn_id) from error
        if isinstance(reply, OmnirayError):
            raise reply
        return reply

    def call(self, call: Call, timeout_s: float, arguments: Any = None) -> Any:
        """Make a call and wait for its answer; an error is raised. A call may be made again."""
        try:
            answer = self._ask(CALL + call.name, calls.encode(arguments or calls.Nothing()), JSON, timeout_s)
        except _Unanswered as error:
            silent = f"the coordinator at {self.url} gave no answer to '{call.name}': {error}"
            raise Unreachable(silent, url=self.url) from error
        if answer.status != http.HTTPStatus.OK:
            raise calls.decode_error(answer.body, call.name)
        return calls.decode_answer(call, answer.body)

    def stage(self, terms: StageTerms, timeout_s: float) -> bytes:
        """Have a file staged by the coordinator's workers; returns the part, or the error of its rows, as a message."""
        try:
            answer = self._ask(STAGE, calls.encode(terms), JSON, timeout_s)
        except _Unanswered as error:
            silent = f"the coordinator at {self.url} gave no answer to 'stage': {error}"
            raise Unreachable(silent, url=self.url) from error
        if answer.kind != PACKED:
            raise calls.decode_error(answer.body, "stage")
        return answer.body

    def close(self) -> None:
        with self._lock:
            idle, self._is_closed = self._idle.copy(), True
            self._idle.clear()
        for connection in idle:
            connection.close()

    # Requests

    def _ask(self, path: str, body: bytes, kind: str, timeout_s: float) -> _Answer:
        try:
            connection = self._connection(timeout_s)
        except _NotSent as error:
            raise Unreachable(f"the coordinator at {self.url} does not answer: {error}", url=self.url) from error
        try:
            connection.sock.settimeout(min(timeout_s, ANSWER_S_MAX))
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it was refused before all was sent
                connection.request("POST", path, body, {**self._headers, "Content-Type": kind})
            response = connection.getresponse()
            answer = _Answer(response.status, response.headers.get("Content-Type", ""), response.read())
            if answer.kind not in (PACKED, JSON):
                raise _Unanswered(f"it failed with status {answer.status}")
        except BaseException as error:
            connection.close()
            if isinstance(error, OSError | http.client.HTTPException):
                raise _Unanswered(_reason(error, timeout_s)) from error
            raise
        self._heard(response)
        self._keep(connection, response)
        return answer

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        with self._lock:
            while self._idle:
                if not _has_ended(connection := self._idle.pop()):
                    return connection
                connection.close()
        if self._context is None:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=min(CONNECT_TIMEOUT_S, timeout_s))
        else:
            connection = http.client.HTTPSConnection(
                self._host, self._port, timeout=min(CONNECT_TIMEOUT_S, timeout_s), context=self._context
            )
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            raise _NotSent(_reason(error, CONNECT_TIMEOUT_S)) from error
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return connection

    def _heard(self, response: http.client.HTTPResponse) -> None:
        self._heard_at = time.monotonic()
        said = response.headers.get(NEWEST, "")
        if said.isdecimal():
            self.newest = max(self.newest, int(said))

    def _keep(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
        with self._lock:
            is_kept = not (response.will_close or self.root._is_closed)
            if is_kept:
                self._idle.append(connection)
        if not is_kept:
            connection.close()


def _has_ended(connection: http.client.HTTPConnection) -> bool:
    """Whether there is something to be read where nothing is expected: then the other side has closed."""
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))


def _reason(error: Exception, timeout_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer in {timeout_s:g} s"
    if isinstance(error, http.client.RemoteDisconnected):
        return "the connection was closed"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return text.partition("\n")[0]
