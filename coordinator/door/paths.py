"""The paths and headers of a door's HTTP, for both of its sides. A path begins with the version of its messages."""

from __future__ import annotations

WRITE, CALL, STAGE = "write", "call/", "stage"
LINE, PLACE, NEWEST = "X-Omniray-Line", "X-Omniray-Place", "X-Omniray-Newest"
PACKED, JSON = "application/vnd.msgpack", "application/json"


def path_of(version: int, name: str) -> str:
    return f"/v{version}/{name}"


def parsed_path(path: str) -> tuple[int, str]:
    """The version of the messages that a path names, and the rest of it; 0 and all of it if it names none."""
    version, found, name = path.removeprefix("/v").partition("/")
    if not (found and path.startswith("/v") and version.isascii() and version.isdigit() and len(version) < 10):
        return 0, path
    return int(version), name
