"""Small Lance tables for the surface guards, and the least namespace client that stages a commit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from lance.fragment import write_fragments
from lance_namespace import LanceNamespace
from lance_namespace_urllib3_client import models

Request = dict[str, Any]


class Recorder(LanceNamespace):
    """A namespace client that notes every call; it takes each created version, and can be told more."""

    def __init__(
        self,
        on_create: Callable[[Request], None] | None = None,
        manifest_of: Callable[[int], str] | None = None,
    ) -> None:
        self.created: list[Request] = []
        self.described: list[Request] = []
        self._on_create = on_create
        self._manifest_of = manifest_of

    def namespace_id(self) -> str:
        return "recorder"

    def create_table_version(self, request: Any) -> Any:
        self.created.append(dict(request))
        if self._on_create:
            self._on_create(request)
        version = models.TableVersion(version=request["version"], manifest_path=request["manifest_path"])
        return models.CreateTableVersionResponse(version=version)

    def describe_table_version(self, request: Any) -> Any:
        self.described.append(dict(request))
        if self._manifest_of is None:
            raise NotImplementedError
        path = self._manifest_of(request["version"])
        version = models.TableVersion(version=request["version"], manifest_path=path)
        return models.DescribeTableVersionResponse(version=version)


def rows(*ids: str, value: int = 0) -> pa.Table:
    """One row for each id."""
    return pa.table({"id": list(ids), "value": pa.array([value] * len(ids), pa.int64())})


def new_table(folder: Path, *fragments: pa.Table) -> lance.LanceDataset:
    """A table with one fragment, and one version, for each batch."""
    uri = str(folder / "table")
    dataset = lance.write_dataset(fragments[0], uri)
    for batch in fragments[1:]:
        dataset = append(dataset, batch)
    return dataset


def ids(dataset: lance.LanceDataset) -> list[str]:
    """The ids that a handle reads, sorted."""
    found: list[str] = sorted(dataset.to_table(columns=["id"]).column("id").to_pylist())
    return found


def plain(dataset: lance.LanceDataset) -> lance.LanceDataset:
    """What a reader sees who knows nothing of us."""
    return lance.dataset(dataset.uri)


def adding(dataset: lance.LanceDataset, batch: pa.Table) -> lance.LanceOperation.Append:
    """An append whose rows are staged on the handle."""
    return lance.LanceOperation.Append(write_fragments(batch, dataset))


def append(dataset: lance.LanceDataset, batch: pa.Table) -> lance.LanceDataset:
    """A plain, visible append on top of the handle."""
    return lance.LanceDataset.commit(dataset, adding(dataset, batch), read_version=dataset.version)


def updating(
    removed: list[int] | None = None,
    updated: list[lance.FragmentMetadata] | None = None,
    new: list[lance.FragmentMetadata] | None = None,
) -> lance.LanceOperation.Update:
    """A hand-made update."""
    return lance.LanceOperation.Update(
        removed_fragment_ids=removed or [], updated_fragments=updated or [], new_fragments=new or [], fields_modified=[]
    )


def deleting(dataset: lance.LanceDataset, fragment_id: int, *deleted: str) -> lance.FragmentMetadata | None:
    """A fragment's metadata without the rows of these ids, or None when nothing is left of it."""
    wanted = ",".join(f"'{one}'" for one in deleted)
    found = dataset.scanner(columns=["id"], filter=f"id in ({wanted})", with_row_address=True).to_table()
    addresses = [address for address in found.column("_rowaddr").to_pylist() if address >> 32 == fragment_id]
    return dataset.get_fragment(fragment_id).delete(f"_rowaddr in ({','.join(map(str, addresses))})")


def stage(
    dataset: lance.LanceDataset, operation: Any, client: Recorder, read_version: int | None = None
) -> lance.LanceDataset:
    """Commit on top of the handle, under a staging name."""
    return lance.LanceDataset.commit(
        dataset,
        operation,
        read_version=read_version or dataset.version,
        namespace_client=client,
        table_id=["table"],
        namespace_client_managed_versioning=True,
    )


def opened_with(dataset: lance.LanceDataset, client: Recorder) -> lance.LanceDataset:
    """The handle's version, opened so that every commit on it goes through the client."""
    return lance.LanceDataset(
        dataset.uri,
        version=dataset.version,
        namespace_client=client,
        table_id=["table"],
        namespace_client_managed_versioning=True,
    )


def versions_folder(dataset: lance.LanceDataset) -> Path:
    """Where a table on disk keeps its manifests."""
    return Path(dataset.uri.removeprefix("file://")) / "_versions"


def staging_file(dataset: lance.LanceDataset, request: Request) -> Path:
    """The manifest of a staged version, on disk."""
    return versions_folder(dataset) / Path(request["manifest_path"]).name


def final_file(dataset: lance.LanceDataset, version: int) -> Path:
    """Where plain Lance looks for a version."""
    return versions_folder(dataset) / f"{2**64 - 1 - version:020}.manifest"


def finalise(dataset: lance.LanceDataset, request: Request) -> None:
    """Give a staged version its final name: the same bytes."""
    target = final_file(dataset, request["version"])
    assert not target.exists()
    target.write_bytes(staging_file(dataset, request).read_bytes())
