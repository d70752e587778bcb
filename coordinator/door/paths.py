"""The paths and headers of a door's HTTP, for both of its sides."""

WRITE, CALL, STAGE = "/v1/write", "/v1/call/", "/v1/stage"
LINE, PLACE, NEWEST = "X-Omniray-Line", "X-Omniray-Place", "X-Omniray-Newest"
PACKED, JSON = "application/vnd.msgpack", "application/json"
