"""Restores omniray's errors raised in a Spark process, which Spark passes on as the text of a traceback."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from omniray.engine.base import errors
from omniray.engine.base.errors import OmnirayError, rebuilt

_RAISED = re.compile(rf"^{re.escape(errors.__name__)}\.(\w+): (.+)$", re.MULTILINE)


@contextmanager
def own_errors() -> Iterator[None]:
    """Raise an omniray error with its own type, wherever in Spark it was raised; Spark's errors are unchanged."""
    try:
        yield
    except OmnirayError:
        raise
    except Exception as error:  # Spark's errors have no common base class
        ours = error_in(str(error))
        if ours is None:
            raise
        raise ours from error


def error_in(text: str) -> OmnirayError | None:
    """The last omniray error in the text of a traceback, without its facts."""
    found = _RAISED.findall(text)
    if not found:
        return None
    name, message = found[-1]
    kind = getattr(errors, name, None)
    if not (isinstance(kind, type) and issubclass(kind, OmnirayError)):
        kind = OmnirayError
    return rebuilt(kind, message, {})
