"""Errors of ours that were raised in a process of Spark, which passes them on as the text of a traceback."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from omniray.engine.base import errors
from omniray.engine.base.errors import OmnirayError, rebuilt

_RAISED = re.compile(rf"^{re.escape(errors.__name__)}\.(\w+): (.+)$", re.MULTILINE)


@contextmanager
def own_errors() -> Iterator[None]:
    """Raise an error of ours as what it is, wherever Spark met it; those of Spark stay what they are."""
    try:
        yield
    except OmnirayError:
        raise
    except Exception as error:  # those of Spark have no class in common
        ours = error_in(str(error))
        if ours is None:
            raise
        raise ours from error


def error_in(text: str) -> OmnirayError | None:
    """The last error of ours that a text tells of, without its facts."""
    found = _RAISED.findall(text)
    if not found:
        return None
    name, message = found[-1]
    kind = getattr(errors, name, None)
    if not (isinstance(kind, type) and issubclass(kind, OmnirayError)):
        kind = OmnirayError
    return rebuilt(kind, message, {})
