"""Graphs from written archives of every form, and from the real ones."""

from __future__ import annotations

import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from uotpool_experiments.datasets import (
    CATALOG,
    DatasetMissingError,
    DatasetRefusedError,
    GraphStatistics,
    catalog,
    entry,
)
from uotpool_experiments.datasets.graphs import Graphs, load, read
from uotpool_experiments.tasks.fingerprint import closure

from experiments.tests.datasets import helpers

TABLE_4 = {
    "NCI1": (4110, 29.87, 32.30, 2),
    "PROTEINS": (1113, 39.06, 72.82, 2),
    "MUTAG": (188, 17.93, 19.79, 2),
    "COLLAB": (5000, 74.49, 2457.78, 3),
    "REDDIT-BINARY": (2000, 429.63, 497.75, 2),
    "REDDIT-MULTI-5K": (4999, 508.52, 594.87, 5),
    "IMDB-BINARY": (1000, 19.77, 96.53, 2),
    "IMDB-MULTI": (1500, 13.00, 65.94, 3),
}
STATISTICS = GraphStatistics(2, 2.5, 1.5, 2)  # of the small archive
TENSORS = ("x", "edge_index", "ptr", "edge_ptr", "y")


def small(folder, **changed) -> Graphs:
    return read(helpers.put(folder, "SMALL.zip", helpers.tu_bytes(**changed)))


def assert_same(a: Graphs, b: Graphs) -> None:
    for field in TENSORS:
        left, right = getattr(a, field), getattr(b, field)
        assert (left is None and right is None) or torch.equal(left, right), field
    assert (a.name, a.num_node_labels, a.num_classes) == (b.name, b.num_node_labels, b.num_classes)


def test_a_small_archive(tmp_path):
    graphs = small(tmp_path)
    assert (graphs.name, len(graphs), graphs.num_nodes) == ("SMALL", 2, 5)
    assert graphs.edge_index.tolist() == [[0, 1, 1, 2, 3, 4], [1, 0, 2, 1, 4, 3]]
    assert (graphs.ptr.tolist(), graphs.edge_ptr.tolist()) == ([0, 3, 5], [0, 4, 6])
    assert graphs.batch.tolist() == [0, 0, 0, 1, 1]
    assert graphs.batch is graphs.batch
    assert graphs.sizes.tolist() == [3, 2]
    assert (graphs.y.tolist(), graphs.num_classes) == ([1, 0], 2)  # of 1 and -1, sorted
    assert (graphs.x.tolist(), graphs.num_node_labels) == ([0, 1, 0, 2, 2], 3)
    assert all(getattr(graphs, field).dtype == torch.int64 for field in TENSORS)
    assert graphs.statistics() == STATISTICS


@pytest.mark.parametrize(
    "edges",
    [
        b"5,4\r\n4,5\r\n2,3\r\n3,2\r\n2,1\r\n1,2\r\n",
        helpers.TEXTS["A"] * 2,
        helpers.TEXTS["A"] + b"2, 1\n",
    ],
    ids=["order", "all twice", "one twice"],
)
def test_how_the_edges_are_written_does_not_matter(tmp_path, edges):
    """The digest of the graphs takes all of these, so runs must not depend on which archive is at hand."""
    assert_same(small(tmp_path / "a", A=edges), small(tmp_path / "b"))


@pytest.mark.parametrize("edges", [b"2, 2\n", b"2, 2\n2, 2\n"])
def test_self_loops_stay_and_count_once(tmp_path, edges):
    graphs = small(tmp_path, A=helpers.TEXTS["A"] + edges)
    assert graphs.edge_index.tolist() == [[0, 1, 1, 1, 2, 3, 4], [1, 0, 1, 2, 1, 4, 3]]
    assert graphs.edge_ptr.tolist() == [0, 5, 7]
    assert graphs.statistics().mean_edges == 2.0  # 3 + 1
    assert_same(graphs.without_loops(), small(tmp_path / "plain"))


def test_nodes_without_edges_keep_their_place(tmp_path):
    """Such nodes are in the middle of a graph, at its end, at the end of all, and in graphs without edges."""
    graphs = small(
        tmp_path,
        A=b"2, 4\n4, 2\n7, 8\n8, 7\n",
        graph_indicator=b"1\n1\n1\n1\n1\n2\n3\n3\n3\n4\n4\n",
        graph_labels=b"0\n1\n0\n1\n",
        node_labels=b"7\n8\n7\n8\n9\n7\n7\n7\n7\n8\n9\n",
    )
    assert graphs.sizes.tolist() == [5, 1, 3, 2]
    assert graphs.num_nodes == 11
    assert graphs.edge_ptr.tolist() == [0, 2, 2, 4, 4]
    assert graphs.statistics() == GraphStatistics(4, 2.75, 0.5, 2)
    assert graphs.features("constant").shape == (11, 1)
    assert graphs.features("labels").shape == (11, 3)
    part = graphs.subset([3, 2, 1, 0])
    assert part.sizes.tolist() == [2, 3, 1, 5]
    assert part.batch.tolist() == [0] * 2 + [1] * 3 + [2] + [3] * 5
    assert part.edge_index.tolist() == [[2, 3, 7, 9], [3, 2, 9, 7]]
    assert part.edge_ptr.tolist() == [0, 0, 2, 2, 4]
    assert part.x.tolist() == [1, 2, 0, 0, 0, 0, 0, 1, 0, 1, 2]


def test_no_edges_at_all(tmp_path):
    for text in (b"", b"\n"):
        graphs = small(tmp_path, A=text)
        assert graphs.edge_index.shape == (2, 0)
        assert graphs.subset([1, 0]).edge_ptr.tolist() == [0, 0, 0]
        assert graphs.statistics() == GraphStatistics(2, 2.5, 0.0, 2)


def test_features(tmp_path):
    graphs = small(tmp_path, node_labels=b"5\n-3\n5\n900\n900\n")  # values say nothing, a column for each
    assert graphs.features("labels").tolist() == [[0, 1, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1]]
    assert graphs.subset([1]).features("labels").tolist() == [[0, 0, 1]] * 2
    assert graphs.subset([0]).features("labels").tolist() == [[0, 1, 0], [1, 0, 0], [0, 1, 0]]
    assert graphs.subset([1]).features("constant").tolist() == [[1.0], [1.0]]
    assert {graphs.features(kind).dtype for kind in ("constant", "labels")} == {torch.float32}
    with pytest.raises(ValueError, match=r"^kind: expected one of 'constant', 'labels', got 'degree'"):
        graphs.features("degree")


def test_features_without_node_labels(tmp_path):
    members = {f"SMALL/SMALL_{k}.txt": text for k, text in helpers.TEXTS.items() if k != "node_labels"}
    graphs = read(helpers.put(tmp_path, "SMALL.zip", helpers.zip_bytes(members)))
    assert (graphs.x, graphs.num_node_labels, graphs.subset([0]).x) == (None, 0, None)
    assert graphs.features("constant").tolist() == [[1.0]] * 5
    with pytest.raises(
        ValueError, match=r"^kind: expected 'constant', as SMALL has no node labels, got 'labels'"
    ):
        graphs.features("labels")


@pytest.mark.parametrize(
    ("changed", "text", "message"),
    [
        ({"A": b"1, 2\n2, 1\n3, 4\n4, 3\n"}, "A", "of one graph .* graphs 1 and 2 joined in line 3"),
        ({"A": b"1, 2\n2, 1\n5, 6\n"}, "A", "nodes >= 1 and <= 5, .* found 6 in line 3"),
        ({"A": b"1, 2\n0, 1\n"}, "A", "nodes >= 1 and <= 5, .* found 0 in line 2"),
        ({"A": b"1, 99999999999999999999999\n"}, "A", "nodes >= 1 and <= 5, .* in line 1"),
        ({"A": b"1, 2\n2\n"}, "A", "two nodes for each edge .* 3 numbers"),
        ({"A": b"1, 2\n2, 3\n3, 2\n"}, "A", "both directions .* one direction of 1 edges, such as 1, 2"),
        ({"A": b"2, 1\n3, 2\n"}, "A", "both directions .* one direction of 2 edges, such as 1, 2"),
        ({"A": b"1, 2\n1, 2\n"}, "A", "both directions .* one direction of 1 edges, such as 1, 2"),
        ({"A": b"1, 2\n2, 1.5\n"}, "A", "whole numbers"),
        ({"A": b"one, two\n"}, "A", "whole numbers"),
        ({"graph_labels": b"1\n"}, "graph_indicator", "graphs 1 to 1, as many .* found 1 to 2"),
        ({"graph_labels": b"1\n2\n3\n"}, "graph_indicator", "graphs 1 to 3, as many .* found 1 to 2"),
        ({"graph_labels": b""}, "graph_indicator", "graphs 1 to 0, .* found 5 lines"),
        ({"graph_labels": b"1\nx\n"}, "graph_labels", "whole numbers"),
        ({"graph_indicator": b"1\n2\n1\n2\n2\n"}, "graph_indicator", "order .* found 1 after 2 in line 3"),
        ({"graph_indicator": b"0\n0\n0\n1\n1\n"}, "graph_indicator", "graphs 1 to 2, .* found 0 to 1"),
        (
            {"graph_indicator": b"1\n1\n1\n3\n3\n", "graph_labels": b"1\n2\n3\n"},
            "graph_indicator",
            "graphs 1 to 3, .* found none of graph 2",
        ),
        ({"graph_indicator": b""}, "graph_indicator", "found 0 lines"),
        ({"node_labels": b"0\n1\n0\n2\n"}, "node_labels", "5 numbers, one for each node, .* found 4"),
        ({"node_labels": b"0, 1\n" * 5}, "node_labels", "5 numbers, one for each node, .* found 10"),
    ],
)
def test_malformed_texts_are_refused(tmp_path, changed, text, message):
    with pytest.raises(DatasetRefusedError, match=message) as caught:
        small(tmp_path, **changed)
    assert str(caught.value).startswith(f"{tmp_path / 'SMALL.zip'}: expected ")
    assert f" in SMALL_{text}.txt, found " in str(caught.value)


@st.composite
def some_graphs(draw) -> Graphs:
    """Random undirected graphs, also without edges, with self-loops or not."""
    sizes = draw(st.lists(st.integers(0, 5), min_size=1, max_size=6))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    edges, edge_sizes, start = [], [], 0
    for size in sizes:
        there = np.triu(random.random((size, size)) < draw(st.sampled_from([0, 0.4, 1])))
        pairs = np.argwhere(there | there.T) + start
        edges.append(pairs)
        edge_sizes.append(len(pairs))
        start += size
    x = torch.from_numpy(random.integers(0, 4, start)) if draw(st.booleans()) else None
    return Graphs(
        "random",
        x,
        torch.from_numpy(np.concatenate(edges).T.copy()),
        torch.tensor(np.cumsum([0, *sizes])),
        torch.tensor(np.cumsum([0, *edge_sizes])),
        torch.from_numpy(random.integers(0, 3, len(sizes))),
        0 if x is None else 4,
        3,
    )


def slow_subset(graphs: Graphs, which: list[int]) -> Graphs:
    x, y, edges, ptr, edge_ptr = [], [], [], [0], [0]
    for g in which:
        low, high = int(graphs.ptr[g]), int(graphs.ptr[g + 1])
        for first, second in graphs.edge_index.T.tolist():
            if low <= first < high:
                assert low <= second < high
                edges.append((first - low + ptr[-1], second - low + ptr[-1]))
        x += [] if graphs.x is None else graphs.x[low:high].tolist()
        y.append(int(graphs.y[g]))
        ptr.append(ptr[-1] + high - low)
        edge_ptr.append(len(edges))
    return Graphs(
        graphs.name,
        None if graphs.x is None else torch.tensor(x, dtype=torch.int64),
        torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).T,
        torch.tensor(ptr),
        torch.tensor(edge_ptr),
        torch.tensor(y, dtype=torch.int64),
        graphs.num_node_labels,
        graphs.num_classes,
    )


@settings(deadline=None, max_examples=200)
@given(some_graphs(), st.data())
def test_subset_is_the_graphs_one_by_one(graphs, data):
    which = data.draw(st.lists(st.integers(0, len(graphs) - 1), max_size=8))
    form = data.draw(st.sampled_from([list, np.array, torch.tensor]))
    part = graphs.subset(form(which))
    assert_same(part, slow_subset(graphs, which))
    assert part.batch.tolist() == [b for b, g in enumerate(which) for _ in range(int(graphs.sizes[g]))]
    again = data.draw(st.lists(st.integers(0, len(which) - 1), max_size=5)) if which else []
    assert_same(part.subset(again), graphs.subset([which[i] for i in again]))


@settings(deadline=None)
@given(some_graphs())
def test_subset_of_all_is_all_and_leaves_it_alone(graphs):
    before = {field: getattr(graphs, field) for field in TENSORS}
    copies = {field: None if x is None else x.clone() for field, x in before.items()}
    part = graphs.subset(range(len(graphs)))
    assert_same(part, graphs)
    part.edge_index.add_(1)  # not a view
    part.y.add_(1)
    assert all(x is None or torch.equal(x, copies[field]) for field, x in before.items())


@pytest.mark.parametrize(
    ("which", "error"),
    [
        ([2], ValueError),
        ([0, -1], ValueError),
        ([0.5], TypeError),
        ([True, False], TypeError),
        ([[0]], ValueError),
    ],
)
def test_subset_refuses(tmp_path, which, error):
    with pytest.raises(error, match=r"^indices: expected"):
        small(tmp_path).subset(which)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x", torch.zeros(4, dtype=torch.int64)),
        ("x", torch.zeros(5)),
        ("edge_index", torch.zeros(6, 2, dtype=torch.int64)),
        ("edge_index", torch.zeros(2, 6, dtype=torch.int32)),
        ("ptr", torch.tensor([0, 5])),
        ("edge_ptr", torch.tensor([0, 4, 5])),
        ("y", torch.tensor([[0, 1]])),
    ],
)
def test_refuses_what_are_no_graphs(tmp_path, name, value):
    graphs = small(tmp_path)
    parts = {field: getattr(graphs, field) for field in Graphs.__dataclass_fields__}
    with pytest.raises(ValueError, match=f"^{name}: expected"):
        Graphs(**(parts | {name: value}))


# The real archives.


@pytest.mark.parametrize("name", TABLE_4)
def test_real_archives(real, name):
    graphs = load(name)
    assert graphs.statistics() == TABLE_4[name] == entry(name).paper
    assert graphs.y.unique().tolist() == list(range(graphs.num_classes))
    first, second = graphs.edge_index.numpy()
    assert (first[1:] >= first[:-1]).all()
    assert (np.diff(second)[first[1:] == first[:-1]] > 0).all()
    inside = graphs.ptr.numpy().searchsorted(first[graphs.edge_ptr[:-1]], side="right") - 1
    assert (inside == np.arange(len(graphs))).all()  # each of these graphs has an edge
    assert (first == second).sum() == (2837 if name == "COLLAB" else 0)


@pytest.mark.parametrize(("name", "isolated"), [("PROTEINS", 5), ("NCI1", 428)])
def test_real_nodes_without_edges_are_there(real, name, isolated):
    graphs = load(name)
    degree = torch.bincount(graphs.edge_index[0], minlength=graphs.num_nodes)
    assert len(degree) == graphs.num_nodes == len(graphs.x)
    assert int((degree == 0).sum()) == isolated


@pytest.mark.parametrize("name", ["MUTAG", "IMDB-BINARY"])
def test_as_torch_geometric_reads_it(real, tmp_path, name):
    """The comparison is on data without self-loops, which PyG drops."""
    from torch_geometric.io import read_tu_data

    with zipfile.ZipFile(real.data / "tu" / f"{name}.zip") as archive:
        archive.extractall(tmp_path)
    data, slices, _ = read_tu_data(str(tmp_path / name), name)
    graphs = load(name)
    shift = torch.repeat_interleave(graphs.ptr[:-1], graphs.edge_ptr.diff())
    assert torch.equal(data.edge_index, graphs.edge_index - shift)
    assert torch.equal(slices["edge_index"], graphs.edge_ptr)
    assert torch.equal(data.y, graphs.y)
    if name == "MUTAG":
        assert torch.equal(data.x, graphs.features("labels"))
        assert torch.equal(slices["x"], graphs.ptr)
    else:
        assert data._num_nodes == graphs.sizes.tolist()


def test_real_batches_are_the_graphs_one_by_one(real):
    graphs = load("MUTAG")
    assert graphs.features("labels").shape == (3371, 7)
    which = np.random.default_rng(0).permutation(len(graphs))[:32]
    part = graphs.subset(which)
    assert_same(part, slow_subset(graphs, which.tolist()))
    assert part.features("labels").shape == (part.num_nodes, 7)


# Which file is taken.


def install(monkeypatch, folders, tmp_path, statistics=STATISTICS, **changed):
    """The small archive in the place of one of the catalogue."""
    made = helpers.tu_entry(tmp_path)
    monkeypatch.setitem(CATALOG, "SMALL", catalog.Entry("SMALL", "graph", made.files, statistics))
    return helpers.put(folders.data, "tu/SMALL.zip", helpers.tu_bytes(**changed))


def test_load_is_verified(monkeypatch, folders, tmp_path):
    install(monkeypatch, folders, tmp_path)
    assert_same(load("SMALL"), small(tmp_path / "other"))
    path = install(monkeypatch, folders, tmp_path, graph_labels=b"1\n1\n")
    with pytest.raises(DatasetRefusedError, match=f"^{path}: expected graphs with the digest"):
        load("SMALL")


def test_another_writing_of_a_known_archive_gives_the_same_graphs(monkeypatch, folders, tmp_path):
    install(monkeypatch, folders, tmp_path, A=b"5,4\n4,5\n" + helpers.TEXTS["A"])
    assert_same(load("SMALL"), small(tmp_path / "other"))


def test_other_statistics_are_refused(monkeypatch, folders, tmp_path):
    path = install(monkeypatch, folders, tmp_path, GraphStatistics(2, 2.5, 1.6, 2))
    message = rf"^{path}: expected GraphStatistics\(.*mean_edges=1.6.* found .*mean_edges=1.5"
    with pytest.raises(DatasetRefusedError, match=message):
        load("SMALL")


def vouch(folder, content, path="tu/SMALL.zip"):
    helpers.put(folder, "SHA256SUMS", f"{'0' * 64}  tu/OTHER.zip\n{helpers.sha256(content)}  {path}\n".encode())


@pytest.mark.parametrize("place", ["data", "cache"])
@pytest.mark.parametrize("form", ["tu/SMALL.zip", "*tu/SMALL.zip", "./tu/SMALL.zip"])
def test_unlisted_data_that_are_vouched_for(folders, tmp_path, monkeypatch, place, form):
    monkeypatch.setenv("UOTPOOL_OFFLINE", "1")
    folder = getattr(folders, place)
    helpers.put(folder, "tu/SMALL.zip", helpers.tu_bytes())
    vouch(folder, helpers.tu_bytes(), form)
    assert_same(load("SMALL"), small(tmp_path / "other"))


def test_unlisted_data_that_nobody_vouches_for_are_refused(folders, server, monkeypatch):
    monkeypatch.setattr(catalog, "TU_SITE", server.address().url)
    path = helpers.put(folders.data, "tu/SMALL.zip", helpers.tu_bytes())
    advice = rf"^{path}: expected a line .*cd '{folders.data}' && sha256sum tu/SMALL.zip >> SHA256SUMS$"
    with pytest.raises(DatasetRefusedError, match=advice):
        load("SMALL")
    vouch(folders.data, b"another file")
    with pytest.raises(
        DatasetRefusedError, match=f"^{path}: expected the sha256 {helpers.sha256(b'another file')}"
    ):
        load("SMALL")
    path.unlink()
    path.mkdir()
    with pytest.raises(DatasetRefusedError, match="expected a file, found a folder"):
        load("SMALL")
    assert server.requests == 0


def test_unlisted_data_are_fetched_once_and_pinned(folders, server, tmp_path, monkeypatch):
    monkeypatch.setattr(catalog, "TU_SITE", server.address().url)
    server.content = helpers.tu_bytes()
    with pytest.warns(UserWarning, match="^SMALL: no checksum of it is known") as caught:
        graphs = load("SMALL")
    assert caught[0].filename == __file__
    assert_same(graphs, small(tmp_path / "other"))
    assert helpers.tree(folders.cache) == ["SHA256SUMS", "tu/SMALL.zip"]
    assert not folders.data.exists()
    assert_same(load("SMALL"), graphs)  # no warning, which would be an error
    assert server.requests == 1
    path = folders.cache / "tu/SMALL.zip"
    path.unlink()
    load("SMALL")
    assert server.requests == 2
    path.unlink()
    server.content = helpers.tu_bytes(graph_labels=b"1\n1\n")
    with pytest.raises(DatasetMissingError, match=f"expected the sha256 {helpers.sha256(helpers.tu_bytes())}"):
        load("SMALL")
    assert helpers.tree(folders.cache) == ["SHA256SUMS"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"<html>not found</html>", "no TU data set: expected a sound zip archive"),
        (helpers.tu_bytes(A=b"1, 9\n"), "no TU data set: expected nodes >= 1 and <= 5"),
        (
            helpers.zip_bytes({"SMALL/SMALL_A.txt": b""}),
            "no TU data set: expected the members .*graph_indicator",
        ),
    ],
)
def test_what_is_fetched_must_be_graphs(folders, server, monkeypatch, content, reason):
    monkeypatch.setattr(catalog, "TU_SITE", server.address().url)
    server.content = content
    with pytest.raises(DatasetMissingError, match=reason) as caught:
        load("SMALL")
    assert "Delete it" not in str(caught.value)
    assert helpers.tree(folders.cache) == []


def test_unlisted_data_that_are_missing(folders, server, monkeypatch):
    monkeypatch.setattr(catalog, "TU_SITE", server.address().url)
    server.status = 404
    with pytest.raises(DatasetMissingError) as caught:
        load("PROTEIN")
    message = str(caught.value)
    for part in ("tu/PROTEIN.zip", "SHA256SUMS", str(folders.data), str(folders.cache), "404", "PROTEINS"):
        assert part in message
    monkeypatch.setenv("UOTPOOL_OFFLINE", "1")
    with pytest.raises(DatasetMissingError, match=r"SMALL\.zip: UOTPOOL_OFFLINE forbids it$"):
        load("SMALL")
    assert server.requests == 1


@pytest.mark.parametrize(
    "name",
    [
        "../MUTAG",
        "a/b",
        "a\\b",
        "",
        ".",
        "..",
        "-x",
        "x.zip",
        "x y",
        "MUTAG\n",
        "x\0",
        "C:",
        "é",
        "a" * 65,
        "?x",
    ],
)
def test_names_that_are_none_are_refused(folders, name):
    with pytest.raises(ValueError, match=r"^name: expected the name of a TU data set"):
        load(name)
    assert not folders.data.exists()
    assert not folders.cache.exists()


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("mutag", "MUTAG"),
        ("imdb_binary", "IMDB-BINARY"),
        ("REDDIT-MULTI5K", "REDDIT-MULTI-5K"),
        ("Musk1", "musk1"),
    ],
)
def test_a_name_that_is_meant_but_not_written_exactly(folders, name, meant):
    with pytest.raises(ValueError, match=f"^name: expected '{meant}', written exactly so, got '{name}'"):
        load(name)


def test_names_of_other_things(folders):
    with pytest.raises(ValueError, match=r"^name: expected a data set of graphs \(MUTAG, .*got 'musk1'"):
        load("musk1")
    with pytest.raises(TypeError, match=r"^name: expected the name of a data set, got 3"):
        load(3)


@pytest.mark.parametrize(
    "name", ["ENZYMES", "DD", "NCI109", "REDDIT-MULTI-12K", "PROTEINS_full", "Tox21_AR-LBD_testing"]
)
def test_names_near_a_known_one_can_be_other_data(name):
    file = catalog.unlisted_graphs(name)
    assert (file.path, file.digest) == (f"tu/{name}.zip", None)
    assert [source.url for source in file.sources] == [f"{catalog.TU_SITE}/{name}.zip"]


def test_runs_on_bags_do_not_depend_on_this_module():
    """Else their stored results would be thrown away with each change here."""
    found = closure(("uotpool_experiments.tasks.mil.task",))
    assert "uotpool_experiments.datasets.mil" in found
    assert "uotpool_experiments.datasets.graphs" not in found
