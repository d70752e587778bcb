"""Dates and moments as both languages write them."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_DATETIME = re.compile(_DATE.pattern + r"[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?(Z|[+-][0-9]{2}:[0-9]{2})?")


def date_of(text: str) -> date | None:
    """The day that a text such as `2026-01-31` names; None if it names none."""
    try:
        return date.fromisoformat(text) if _DATE.fullmatch(text) else None
    except ValueError:
        return None


def moment_of(text: str) -> datetime | None:
    """The moment in UTC that a text such as `2026-01-31T12:00:00Z` names; None if it names none."""
    try:
        return in_utc(datetime.fromisoformat(text)) if _DATETIME.fullmatch(text) else None
    except (ValueError, OverflowError):
        return None


def in_utc(moment: datetime) -> datetime:
    """The moment in UTC; one without a time zone is taken as UTC. Raises `OverflowError` beyond the years 1 to 9999."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
