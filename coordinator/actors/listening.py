"""Where the processes of this machine listen, as Linux tells it in `/proc`."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

_PROC = Path("/proc")
_LISTEN = "0A"


def open_to_others(pids: Iterable[int]) -> list[str]:
    """The addresses at which processes accept connections from other machines, with the processes' names."""
    tables = {inode: address for name in ("tcp", "tcp6") for inode, address in _listening(_PROC / "net" / name)}
    return [
        f"{_name_of(pid)} at {tables[inode]}"
        for pid in pids
        for inode in _sockets_of(pid)
        if inode in tables and not _is_loopback(tables[inode])
    ]


def descendants(pids: Iterable[int]) -> set[int]:
    """The processes and all that they started, as far as they are still running."""
    parents: dict[int, int] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):  # it ended meanwhile
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found = set(pids)
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def _listening(table: Path) -> Iterator[tuple[str, str]]:
    with contextlib.suppress(FileNotFoundError):
        for line in table.read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTEN:
                host, _, port = fields[1].partition(":")
                yield fields[9], f"{_ip(host)}:{int(port, 16)}"


def _ip(digits: str) -> str:
    """An address as the kernel writes it: words of 32 bits in the machine's own order."""
    words = [int(digits[at : at + 8], 16) for at in range(0, len(digits), 8)]
    packed = b"".join(struct.pack("=I", word) for word in words)
    return socket.inet_ntop(socket.AF_INET if len(words) == 1 else socket.AF_INET6, packed)


def _is_loopback(address: str) -> bool:
    ip = ipaddress.ip_address(address.rpartition(":")[0])
    mapped = getattr(ip, "ipv4_mapped", None)
    return (mapped or ip).is_loopback


def _sockets_of(pid: int) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for handle in os.scandir(_PROC / str(pid) / "fd"):
            with contextlib.suppress(OSError):
                target = os.readlink(handle.path)
                if target.startswith("socket:["):
                    yield target[len("socket:[") : -1]


def _name_of(pid: int) -> str:
    try:
        return f"{(_PROC / str(pid) / 'comm').read_text().strip()} (process {pid})"
    except OSError:
        return f"process {pid}"
