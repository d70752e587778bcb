"""The connections of a process to one door: HTTP requests, each on a connection that waits for nobody else's.

A connection is kept for the next request. Whether a request that failed has reached the coordinator decides what may be
said of it: nothing was sent where no connection could be made; else its fate is unknown.

`writing`, `calling` and `staging` are generators of waits; `write`, `call` and `stage` are the same for a thread that
waits for the answer.
"""

from __future__ import annotations

import copy
import http
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from omniray.coordinator.client.connection import connecting, exchanging
from omniray.coordinator.client.http1 import BadResponse, Response, head_of_post
from omniray.coordinator.client.waits import Waits, carried_out, deadline_in, is_readable
from omniray.coordinator.door import calls
from omniray.coordinator.door.answers import decode_reply
from omniray.coordinator.door.calls import Call, StageTerms
from omniray.coordinator.door.certificate import client_context
from omniray.coordinator.door.messages import agreed_version
from omniray.coordinator.door.paths import CALL, JSON, LINE, NEWEST, PACKED, PLACE, STAGE, WRITE, path_of
from omniray.coordinator.door.record import FoundDoor
from omniray.coordinator.door.requests import encode_request
from omniray.coordinator.rounds.conflicts import WriteAnswer
from omniray.engine.base.errors import InputError, OmnirayError, OutcomeUnknown, Unreachable
from omniray.engine.writes.write_requests import Request

CONNECT_TIMEOUT_S = 5.0
IDLE_S = 30.0
ANSWER_S_MAX = 24 * 60 * 60.0
"""The longest wait for one answer: the milliseconds of a wait must fit a machine integer."""

_NEWEST, _KIND = NEWEST.lower().encode(), b"content-type"
_DIGITS_MAX = 19


class _Unanswered(Exception):
    """The request was sent, at least in part, and no whole answer came."""


@dataclass(slots=True)
class Known:
    """The highest number of a line that its coordinator told, or that the line had, and when that was heard."""

    newest: int
    heard_at: float = field(default_factory=lambda: time.monotonic())

    @property
    def may_be_old(self) -> bool:
        return time.monotonic() - self.heard_at > IDLE_S

    def hear(self, newest: int) -> None:
        self.newest, self.heard_at = max(self.newest, newest), time.monotonic()


class Wire:
    """The connections to one door. Threads may share it; it tells what is known of the line that its requests name."""

    def __init__(self, door: FoundDoor, line: str, newest: int) -> None:
        self.url, self._known = door.record.url, Known(newest)
        self._version = agreed_version(door.record.versions, f"the coordinator at {self.url}")
        parts = urlsplit(self.url)
        self._host, self._port = parts.hostname or "", parts.port or 0
        self._context = client_context(door.record.certificate) if parts.scheme == "https" else None
        self._headers = {
            "Host": parts.netloc, "Authorization": f"Bearer {door.record.secret}", PLACE: door.place, LINE: line,
        }  # fmt: skip
        self._idle: list[socket.socket] = []  # the one used last is used next
        self._lock, self._is_closed = threading.Lock(), False
        self.root = self

    def __repr__(self) -> str:
        return f"Wire({self.url!r})"

    @property
    def newest(self) -> int:
        return self._known.newest

    @property
    def has_paused(self) -> bool:
        """Whether nothing was heard for so long that `newest` may be old, and connections be closed."""
        return self._known.may_be_old

    def on(self, line: str, known: Known) -> Wire:
        """The wire for another branch, of which this much is known: over the same connections; `root` is this one."""
        other = copy.copy(self)
        other._headers, other._known = {**self._headers, LINE: line}, known
        return other

    def write(self, request: Request, timeout_s: float) -> WriteAnswer:
        return carried_out(self.writing(request, timeout_s))

    def call(self, call: Call, timeout_s: float, arguments: Any = None) -> Any:
        return carried_out(self.calling(call, timeout_s, arguments))

    def stage(self, terms: StageTerms, timeout_s: float) -> bytes:
        return carried_out(self.staging(terms, timeout_s))

    def writing(self, request: Request, timeout_s: float) -> Waits[WriteAnswer]:
        """Send a write and wait for its answer; an error is raised."""
        txn_id = request.header.commit_id
        try:
            answer = yield from self._asking(WRITE, encode_request(request, self._version), PACKED, timeout_s)
        except _Unanswered as error:
            unknown = f"no answer to write {txn_id} from the coordinator at {self.url}: {error}"
            raise OutcomeUnknown(unknown, txn_id=txn_id) from error
        if _kind(answer) != PACKED:  # it was refused before it was read
            raise calls.decode_error(answer.body, "write")
        try:
            reply = decode_reply(answer.body)
        except InputError as error:
            unread = f"the answer to write {txn_id} from the coordinator at {self.url} can't be read: {error}"
            raise OutcomeUnknown(unread, txn_id=txn_id) from error
        if isinstance(reply, OmnirayError):
            raise reply
        return reply

    def calling(self, call: Call, timeout_s: float, arguments: Any = None) -> Waits[Any]:
        """Make a call and wait for its answer; an error is raised. A call may be made again."""
        encoded = calls.encode(arguments or calls.Nothing())
        answer = yield from self._asking_again(CALL + call.name, encoded, timeout_s, call.name)
        if answer.status != http.HTTPStatus.OK:
            raise calls.decode_error(answer.body, call.name)
        return calls.decode_answer(call, answer.body)

    def staging(self, terms: StageTerms, timeout_s: float) -> Waits[bytes]:
        """Have a file staged by the coordinator's workers; returns the part, or the error of its rows, as a message."""
        answer = yield from self._asking_again(STAGE, calls.encode(terms), timeout_s, "stage")
        if _kind(answer) != PACKED:
            raise calls.decode_error(answer.body, "stage")
        return answer.body

    def close(self) -> None:
        with self._lock:
            idle, self._is_closed = self._idle.copy(), True
            self._idle.clear()
        for connection in idle:
            connection.close()

    # Requests

    def _asking_again(self, name: str, body: bytes, timeout_s: float, what: str) -> Waits[Response]:
        """A request that may be made again, whatever became of it."""
        try:
            return (yield from self._asking(name, body, JSON, timeout_s))
        except _Unanswered as error:
            silent = f"the coordinator at {self.url} gave no answer to '{what}': {error}"
            raise Unreachable(silent, url=self.url) from error

    def _asking(self, name: str, body: bytes, kind: str, timeout_s: float) -> Waits[Response]:
        """A request on a connection of its own, which is closed unless it has brought a whole answer."""
        deadline = deadline_in(min(timeout_s, ANSWER_S_MAX))
        connection = yield from self._connecting(timeout_s)
        response: Response | None = None
        try:
            head = head_of_post(path_of(self._version, name), {**self._headers, "Content-Type": kind}, len(body))
            response = yield from exchanging(connection, head, body, deadline)
        except (OSError, BadResponse) as error:
            raise _Unanswered(_reason(error, timeout_s)) from error
        finally:
            self._keep(connection, response)
        if _kind(response) not in (PACKED, JSON):
            raise _Unanswered(f"it failed with status {response.status}")
        self._heard(response)
        return response

    def _connecting(self, timeout_s: float) -> Waits[socket.socket]:
        """The connection that was used last if it is open, or a new one; raises `Unreachable`: nothing was sent."""
        with self._lock:
            while self._idle:
                # Where something can be read and nothing is expected, the other side has closed.
                if not is_readable(connection := self._idle.pop()):
                    return connection
                connection.close()
        deadline = deadline_in(min(CONNECT_TIMEOUT_S, timeout_s))
        try:
            return (yield from connecting(self._host, self._port, self._context, deadline))
        except OSError as error:
            silent = f"the coordinator at {self.url} does not answer: {_reason(error, CONNECT_TIMEOUT_S)}"
            raise Unreachable(silent, url=self.url) from error

    def _heard(self, response: Response) -> None:
        said = response.headers.get(_NEWEST, b"")
        self._known.hear(int(said) if said.isdigit() and len(said) <= _DIGITS_MAX else 0)

    def _keep(self, connection: socket.socket, response: Response | None) -> None:
        """Keep a connection, or close it: what is left of an answer must not be taken for that to another request."""
        with self._lock:
            is_kept = response is not None and not response.closes and not self.root._is_closed
            if is_kept:
                self._idle.append(connection)
        if not is_kept:
            connection.close()


def _kind(response: Response) -> str:
    return response.headers.get(_KIND, b"").decode("latin-1")


def _reason(error: Exception, timeout_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer in {timeout_s:g} s"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return text.partition("\n")[0]
