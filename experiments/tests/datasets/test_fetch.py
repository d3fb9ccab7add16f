"""Where data sets are found, and which files are refused."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest
from uotpool_experiments.datasets import (
    CATALOG,
    DatasetMissingError,
    DatasetRefusedError,
    digests,
    entry,
    fetch,
    locate,
)
from uotpool_experiments.datasets.catalog import DataFile, Entry

from experiments.tests.datasets import helpers

MAT = helpers.mat_bytes()
SMALL = helpers.mil_entry(MAT)


def test_folders(monkeypatch):
    monkeypatch.setenv("UOTPOOL_DATA", "~/data")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert fetch.folders() == [Path.home() / "data", Path("/somewhere/uotpool")]
    monkeypatch.setenv("UOTPOOL_DATA", "")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert fetch.folders() == [Path.home() / ".cache" / "uotpool"]


def test_data_folder_is_searched_before_the_cache(folders):
    cached = helpers.put(folders.cache, "mil/small.mat", MAT)
    assert locate(SMALL) == cached
    own = helpers.put(folders.data, "mil/small.mat", MAT)
    assert locate(SMALL) == own


def test_the_preferred_form_comes_first(folders):
    both = Entry(
        "small", "mil", (SMALL.files[0], DataFile("mil/small.csv", helpers.sha256(b"1,1,1"))), SMALL.statistics
    )
    csv = helpers.put(folders.data, "mil/small.csv", b"1,1,1")
    assert locate(both) == csv
    mat = helpers.put(folders.data, "mil/small.mat", MAT)
    assert locate(both) == mat


@pytest.mark.parametrize(
    "content",
    [MAT[:-1], MAT[: len(MAT) // 2], b"", MAT + b"\0", MAT[:300] + bytes([MAT[300] ^ 1]) + MAT[301:]],
    ids=["a byte less", "half", "empty", "a byte more", "a bit changed"],
)
@pytest.mark.parametrize("place", ["data", "cache"])
def test_a_wrong_file_is_refused(folders, content, place):
    path = helpers.put(getattr(folders, place), "mil/small.mat", content)
    with pytest.raises(DatasetRefusedError) as caught:
        locate(SMALL)
    message = str(caught.value)
    for part in (str(path), helpers.sha256(MAT), helpers.sha256(content), f"{len(content)} bytes", "Delete it"):
        assert part in message


def test_a_wrong_file_is_never_skipped_for_a_good_one(folders, server):
    helpers.put(folders.data, "mil/small.mat", b"wrong")
    helpers.put(folders.cache, "mil/small.mat", MAT)
    server.content = MAT
    with pytest.raises(DatasetRefusedError):
        locate(helpers.mil_entry(MAT, server.address()))
    assert server.requests == 0


def test_a_folder_or_a_dead_link_is_refused(folders):
    (folders.data / "mil/small.mat").mkdir(parents=True)
    with pytest.raises(DatasetRefusedError, match="expected a file"):
        locate(SMALL)
    (folders.data / "mil/small.mat").rmdir()
    (folders.data / "mil/small.mat").symlink_to("nowhere")
    with pytest.raises(DatasetRefusedError, match="expected a file"):
        locate(SMALL)


def test_verified_once_until_it_changes(folders, monkeypatch):
    path = helpers.put(folders.data, "mil/small.mat", MAT)
    calls = []
    real = digests.file_digest
    monkeypatch.setattr(digests, "file_digest", lambda p: calls.append(p) or real(p))
    for _ in range(3):
        locate(SMALL)
    assert len(calls) == 1
    times = path.stat()
    path.write_bytes(MAT[:-1] + bytes([MAT[-1] ^ 1]))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # the same size and time
    with pytest.raises(DatasetRefusedError):
        locate(SMALL)
    path.write_bytes(MAT)
    locate(SMALL)
    assert len(calls) == 3


def test_a_file_without_known_checksum_must_be_vouched_for(folders):
    unknown = helpers.mil_entry(None)
    path = helpers.put(folders.data, "mil/small.mat", MAT)
    with pytest.raises(DatasetRefusedError, match=r"cd '.*' && sha256sum mil/small.mat >> SHA256SUMS"):
        locate(unknown)
    helpers.put(
        folders.data,
        "SHA256SUMS",
        f"{'0' * 64}  mil/other.mat\n{helpers.sha256(MAT)}  mil/small.mat\n".encode(),
    )
    assert locate(unknown) == path
    path.write_bytes(MAT[:-1])
    with pytest.raises(DatasetRefusedError, match=helpers.sha256(MAT)):
        locate(unknown)


def test_missing_without_a_source(folders):
    with pytest.raises(DatasetMissingError) as caught:
        locate(SMALL)
    assert isinstance(caught.value, FileNotFoundError)
    for part in (
        "small",
        "mil/small.mat",
        helpers.sha256(MAT),
        str(folders.data),
        str(folders.cache),
        "no public",
    ):
        assert part in str(caught.value)
    assert not folders.data.exists()
    with pytest.raises(DatasetMissingError, match="add yours to SHA256SUMS"):
        locate(entry("messidor"))


@pytest.mark.parametrize("name", ["musk1", "MUTAG"])
def test_offline(folders, monkeypatch, name):
    monkeypatch.setenv("UOTPOOL_OFFLINE", "1")
    monkeypatch.setattr(fetch.sources, "write", lambda *_: pytest.fail("a source was asked"))
    with pytest.raises(DatasetMissingError) as caught:
        locate(entry(name))
    file = entry(name).files[0]
    for part in (file.path, file.digest, str(folders.data), str(folders.cache), "UOTPOOL_OFFLINE forbids it"):
        assert part in str(caught.value)


def test_embedded_data_have_no_file():
    with pytest.raises(ValueError, match="embedded"):
        locate(entry("digits"))


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
def test_an_archive_may_be_compressed_in_any_way(folders, tmp_path, monkeypatch, compression):
    small = helpers.tu_entry(tmp_path)
    path = helpers.put(folders.data, "tu/SMALL.zip", helpers.tu_bytes(compression))
    monkeypatch.setattr(digests, "graph_digest", lambda _: pytest.fail("not needed"))
    assert locate(small) == path


@pytest.mark.parametrize(
    "changed",
    [
        {"A": b"1,2\r\n2,1\r\n3,2\r\n2,3\r\n5,4\r\n4,5\r\n"},
        {"A": b"2, 1\n3, 2\n5, 4\n"},
        {"graph_labels": b" 1\r\n-1"},
        {"edge_labels": b"not used\n"},
    ],
    ids=["order, spaces, line ends", "one direction", "spaces", "a text that is not used"],
)
def test_the_same_graphs_may_be_written_in_another_way(folders, tmp_path, changed):
    small = helpers.tu_entry(tmp_path)
    path = helpers.put(folders.data, "tu/SMALL.zip", helpers.tu_bytes(**changed))
    assert locate(small) == path


@pytest.mark.parametrize(
    "changed",
    [
        {"A": b"1, 2\n2, 1\n1, 3\n3, 1\n4, 5\n5, 4\n"},
        {"A": helpers.TEXTS["A"] + b"7"},
        {"A": b"who knows"},
        {"A": b""},
        {"graph_labels": b"1\n1\n"},
        {"graph_labels": b"1\n-"},
        {"node_labels": b"0\n1\n0\n2\n1\n"},
        {"node_attributes": b"0.5\n1\n0\n2\n1\n"},
    ],
)
def test_other_graphs_are_refused(folders, tmp_path, changed):
    small = helpers.tu_entry(tmp_path)
    path = helpers.put(folders.data, "tu/SMALL.zip", helpers.tu_bytes(**changed))
    with pytest.raises(DatasetRefusedError, match=rf"^{path}: expected"):
        locate(small)


@pytest.mark.parametrize("cut", [10, 200, -1])
def test_a_truncated_archive_is_refused(folders, tmp_path, cut):
    small = helpers.tu_entry(tmp_path)
    path = helpers.put(folders.data, "tu/SMALL.zip", helpers.tu_bytes()[:cut])
    with pytest.raises(DatasetRefusedError, match=rf"{path}: expected a sound zip archive.*Delete it"):
        locate(small)


@pytest.mark.parametrize("name", ["../evil.txt", "/etc/evil", "SMALL/../../evil", "..\\evil", "C:\\evil"])
def test_names_that_lead_out_of_an_archive_are_refused(folders, tmp_path, name):
    small = helpers.tu_entry(tmp_path)
    members = {f"SMALL/SMALL_{kind}.txt": text for kind, text in helpers.TEXTS.items()}
    helpers.put(folders.data, "tu/SMALL.zip", helpers.zip_bytes(members | {name: b"evil"}))
    with pytest.raises(DatasetRefusedError, match="members below one folder, found"):
        locate(small)


def test_large_doubled_and_missing_members_are_refused(folders, tmp_path, monkeypatch):
    small = helpers.tu_entry(tmp_path)
    path = helpers.put(folders.data, "tu/SMALL.zip", helpers.tu_bytes())
    with monkeypatch.context() as patch:
        patch.setattr(digests.archives, "MAX_MEMBER", 20)
        with pytest.raises(DatasetRefusedError, match="up to 20 bytes"):
            locate(small)
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("SMALL/SMALL_A.txt", b"1, 2\n")
    with pytest.raises(DatasetRefusedError, match="found one twice"):
        locate(small)
    path.write_bytes(helpers.zip_bytes({"SMALL/SMALL_A.txt": b"1, 2\n"}))
    with pytest.raises(DatasetRefusedError, match=r"SMALL_graph_indicator\.txt"):
        locate(small)


@pytest.mark.parametrize("name", ["MUTAG", "PROTEINS", "NCI1", "IMDB-BINARY", "IMDB-MULTI", "REDDIT-BINARY"])
def test_graphs_of_the_real_archives(real, name):
    """This checks the slower digest; for the two largest archives it would take a quarter of a minute."""
    assert digests.graph_digest(real.data / "tu" / f"{name}.zip") == entry(name).files[0].graph_digest


def test_catalogue_has_the_checksums_of_the_folder(real):
    lines = [line.split() for line in (real.data / "SHA256SUMS").read_text().splitlines()]
    sums = {path: digest for digest, path in lines if path.endswith(".mat")}
    assert sums
    assert {f.path: f.digest for e in CATALOG.values() for f in e.files if f.path in sums} == sums
    assert entry("cifar10-subset").files[0].digest in {digest for digest, _ in lines}
