"""The dictionary of a Parquet column chunk, of which Arrow does not say how large its entries are.

It is the first page of the chunk: a header in Thrift's compact form, whose first fields are the page's type and sizes,
and then each entry behind its length.
"""

from __future__ import annotations

from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

_HEADER_BYTES_MAX = 1024
_DICTIONARY_PAGE = 2
_I32_FIELD = 0x15  # of the next number, and of type i32
_CODECS = {"SNAPPY": "snappy", "GZIP": "gzip", "BROTLI": "brotli", "ZSTD": "zstd", "LZ4_RAW": "lz4_raw"}


def largest_entry_bytes(data: BinaryIO, chunk: pq.ColumnChunkMetaData, page_bytes_max: int) -> int | None:
    """The size of the largest text in a column chunk's dictionary; None if that can't be told."""
    start = min(chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset)
    data.seek(start)
    header = data.read(_HEADER_BYTES_MAX)
    try:
        page_type, unzipped_bytes, stored_bytes, at = _page(header)
        if page_type != _DICTIONARY_PAGE or not 0 < unzipped_bytes <= page_bytes_max:
            return None
        data.seek(start + at)
        return _largest(_unzipped(data.read(stored_bytes), chunk.compression, unzipped_bytes))
    except (IndexError, ValueError, KeyError, pa.ArrowException, OSError):
        return None


def _page(header: bytes) -> tuple[int, int, int, int]:
    """A page's type, its two sizes, and where it begins behind its header."""
    at, numbers = 0, []
    for _ in range(3):
        if header[at] != _I32_FIELD:
            raise ValueError("not a page's header")
        number, at = _varint(header, at + 1)
        numbers.append((number >> 1) ^ -(number & 1))
    return numbers[0], numbers[1], numbers[2], _behind(header, at)


def _behind(data: bytes, at: int) -> int:
    """The position behind the fields of a struct."""
    while (kind := data[at] & 15) != 0:
        at += 1
        match kind:
            case 1 | 2:  # true and false
                continue
            case 3:
                at += 1
            case 4 | 5 | 6:
                _, at = _varint(data, at)
            case 8:
                length, at = _varint(data, at)
                at += length
            case 12:
                at = _behind(data, at)
            case _:
                raise ValueError(f"a field of kind {kind}")
    return at + 1


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _unzipped(stored: bytes, compression: str, size: int) -> bytes:
    if compression == "UNCOMPRESSED":
        return stored
    codec = pa.Codec(_CODECS[compression])
    return codec.decompress(stored, decompressed_size=size, asbytes=True)  # type: ignore[no-any-return]


def _largest(entries: bytes) -> int:
    at = largest = 0
    while at < len(entries):
        length = int.from_bytes(entries[at : at + 4], "little")
        largest = max(largest, length)
        at += 4 + length
    return largest
