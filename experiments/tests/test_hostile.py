"""Files from elsewhere: an error says what is wrong in them, and nothing in them is obeyed."""

from __future__ import annotations

import csv
import io
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.sparse
from uotpool_experiments import csv_cells, toml_file
from uotpool_experiments.cli import arguments
from uotpool_experiments.datasets import DatasetRefusedError, digests
from uotpool_experiments.datasets.graphs import read as read_graphs
from uotpool_experiments.datasets.mil import read_csv, read_mat
from uotpool_experiments.plaintext import visible
from uotpool_experiments.runs import export, sweep
from uotpool_experiments.runs.reading import read_rows
from uotpool_experiments.runs.store import Store
from uotpool_experiments.tables.formats import render
from uotpool_experiments.tasks.spec import Result

from experiments.tests import fuzz, kills
from experiments.tests.datasets import helpers as files
from experiments.tests.helpers import FACTS, command, mil_spec
from experiments.tests.text_table import text_table
from uotpool.cli import main

ROOT = Path(__file__).parents[2]


def refused(*words: str) -> None:
    with pytest.raises(SystemExit) as stop:
        main(list(words))
    assert stop.value.code == 2


# ---------------------------------------------------------------------------------------------------------
# many


@pytest.mark.filterwarnings("ignore")  # of NumPy and SciPy, about what they read
def test_mutated_files_are_read_or_refused():
    """UOTPOOL_FUZZ is the number of files. There is a bound on the memory of this process meanwhile."""
    count = int(os.environ.get("UOTPOOL_FUZZ", "120"))
    ends = fuzz.run(count)
    assert sum(ends.values()) == count
    assert {f"{kind} refused" for kind in fuzz.KINDS} <= set(ends)


# ---------------------------------------------------------------------------------------------------------
# sweeps


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("folds = 1000000000", r"folds: expected a number \(1 to 5\)"),
        ("seeds = 300000000", r"seeds: expected a number \(1 to 100000\)"),
        ("seeds = 90000", "expected at most 100000 runs, got 450000"),
        ("seeds = [18446744073709551616]", r"list of numbers \(0 to 4294967295\)"),
        ("seeds = true", "seeds: expected a number"),
        ("seeds = 1979-05-27", "seeds: expected a number"),
        ("settings = [1]", "settings: expected a table or a list of tables"),
        ("settings = []", "settings: expected a table or a list of tables"),
        ("protocol = 3", "protocol: expected a name or a list of names, got 3"),
        ("seeds = " + "9" * 5000, "not a TOML file: Exceeds the limit"),
        ("x = " + "[" * 5000, "lists too deep within lists"),
        ("x" + ".x" * 5000 + " = 1", "at most 30 dots in a line"),
        ("#" * 300_000, "at most 262144 bytes"),
    ],
)
def test_a_sweep_file_is_checked_before_it_is_built(tmp_path, line, message):
    path = tmp_path / "sweep.toml"
    path.write_text(f'[[runs]]\ntask = "mil"\ndataset = "digits"\npooling = "mean"\n{line}\n')
    start = time.monotonic()
    with pytest.raises(ValueError, match=message) as caught:
        sweep.read(path)
    assert time.monotonic() - start < 5
    assert str(path) in str(caught.value)


def test_the_runs_of_all_blocks_count_together(tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "MOST_RUNS", 20)
    block = '[[runs]]\ntask = "mil"\ndataset = "digits"\npooling = "{}"\nseeds = 3\n'
    path = tmp_path / "sweep.toml"
    path.write_text(block.format("mean"))
    assert len(sweep.read(path)) == 15
    path.write_text(block.format("mean") + block.format("max"))
    with pytest.raises(ValueError, match="expected at most 20 runs, got 30"):
        sweep.read(path)


def test_settings_are_checked_without_memory_for_the_pooling():
    """This pooling would need memory for 64 x 1e12 numbers."""
    (spec,) = sweep.expand("mil", "digits", "attention", folds=[0], settings={"hidden": 10**12})
    assert spec.options == {"hidden": 10**12}
    with pytest.raises(ValueError, match="settings: expected those of a pooling that can be made"):
        sweep.expand("mil", "digits", "attention", settings={"hidden": 10**18})


def test_an_endless_file_is_no_sweep():
    with pytest.raises(ValueError, match="at most 262144 bytes"):
        toml_file.read(Path("/dev/zero"))


@pytest.mark.parametrize("text", ["300000000", "18446744073709551616,", "9" * 5000, "1,4294967296"])
def test_seeds_of_the_command_line_are_bounded(text, capsys):
    refused("run", "mil", "--seeds", text)
    assert "--seeds: expected" in capsys.readouterr().err
    assert list(arguments.seeds("3")) == [0, 1, 2]


# ---------------------------------------------------------------------------------------------------------
# stores


@pytest.fixture
def path(tmp_path):
    """A store of two runs."""
    found = tmp_path / "runs.sqlite"
    with closing(Store(found)) as store:
        for pooling in ("mean", "max"):
            spec = mil_spec(pooling=pooling, settings={})
            store.save(spec, "code", Result({"accuracy": 0.5, "majority": 0.5}), FACTS, 1.0)
    return found


def change(path: Path, query: str, *values: object) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute(query, values)
        db.commit()


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("metrics", "{", "run 1 is damaged: metrics: expected JSON"),
        ("metrics", "[1]", "metrics: expected a table as JSON"),
        ("metrics", '{"accuracy": NaN}', "accuracy: expected a finite number, got nan"),
        ("metrics", f'{{"accuracy": {10**400}}}', "accuracy: expected a finite number"),
        ("metrics", '{"accuracy": true}', "accuracy: expected a finite number, got True"),
        ("metrics", '{"seed": 1}', "names of letters, digits and _, none of a column's, got 'seed'"),
        ("metrics", '{"=cmd": 1}', "names of letters"),
        ("details", "[" * 100_000, "details: expected JSON"),
        ("versions", "7", "versions: expected a table"),
        ("settings", "{ }", "settings: expected JSON as uotpool writes it"),
        ("seed", "first", "seed: expected a whole number"),
        ("fold", -1, "fold: expected a whole number"),
        ("pooling", b"\xff", "pooling: expected a text"),
        ("seconds", "long", "seconds: expected a number"),
        ("parameters", -1, "parameters: expected a number"),
    ],
)
def test_a_damaged_run_is_named(path, column, value, message, capsys):
    change(path, f"UPDATE runs SET {column} = ?", value)
    with pytest.raises(ValueError, match=message):
        read_rows(path)
    refused("table", "mil", "--store", str(path), "--stored")
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5])
def test_a_truncated_store_is_refused(path, share):
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ValueError, match=r"store: expected a run store of uotpool, got .*runs\.sqlite"):
        read_rows(path)


@pytest.mark.parametrize(
    "query",
    [
        "CREATE VIEW other AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n",
        "CREATE TRIGGER other AFTER INSERT ON runs BEGIN DELETE FROM runs; END",
        "ALTER TABLE runs ADD COLUMN other TEXT GENERATED ALWAYS AS (hex(zeroblob(1000000))) VIRTUAL",
    ],
)
def test_a_store_that_computes_is_refused(path, query):
    change(path, query)
    for readonly in (True, False):
        with pytest.raises(ValueError, match="views, triggers or computed columns: "):
            Store(path, readonly=readonly)


def test_what_is_no_file_is_no_store(tmp_path):
    os.mkfifo(tmp_path / "fifo")  # SQLite would wait for who writes to it
    for there in (tmp_path, tmp_path / "fifo"):
        with pytest.raises(ValueError, match="store: expected a file, got"):
            read_rows(there)


READING = """
import os, sys
from pathlib import Path
from uotpool_experiments.runs.reading import read_rows
if os.getuid() == 0:  # whom no permission binds
    os.setgid(65534)
    os.setuid(65534)
for path in sys.argv[1:]:
    try:
        print(len(read_rows(Path(path))))
    except OSError as error:
        print(error)
"""


@pytest.fixture
def frozen(path):
    """The store in a folder in which nobody may write."""
    parents = [path.parent, *list(path.parents)[1:4]]
    before = [parent.stat().st_mode for parent in parents]
    for parent in parents[1:]:
        parent.chmod(0o755)
    yield path
    for parent, mode in zip(parents, before, strict=True):
        parent.chmod(mode)


def test_a_store_that_is_read_only_is_read_and_one_with_a_journal_says_what_to_do(frozen):
    """A killed sweep leaves a journal: what is in that must not be left out in silence.

    One process, which gives up its permissions, reads both stores.
    """
    killed = frozen.with_name("killed.sqlite")
    with closing(Store(frozen)) as store:
        store._db.execute("UPDATE runs SET seed = 1")
        store._db.commit()
        for ending in ("", "-wal"):  # as they stand when a process is killed now
            shutil.copy(f"{frozen}{ending}", f"{killed}{ending}")
    assert Path(f"{killed}-wal").stat().st_size
    for file in frozen.parent.glob("*.sqlite*"):
        file.chmod(0o444)
    frozen.parent.chmod(0o555)
    argv = [sys.executable, "-c", READING, str(frozen), str(killed)]
    sound, said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
    assert sound == "2"
    assert "killed.sqlite-wal beside it has runs that are not in it" in said
    assert "copy both files" in said


# ---------------------------------------------------------------------------------------------------------
# CSV files


def csv_text(**changed: str) -> str:
    text = io.StringIO()
    with closing(Store(":memory:")) as store:
        store.save(mil_spec(settings={}), "code", Result({"accuracy": 0.5}, details={"note": "x"}), FACTS, 1.0)
        export.write(store.rows(), text)
    head, line = csv.reader(text.getvalue().splitlines())
    cells = dict(zip(head, line, strict=True)) | changed
    made = io.StringIO()
    csv.writer(made, lineterminator="\n").writerows([list(cells), list(cells.values())])
    return made.getvalue()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"seed": str(2**64)}, "line 2: not a run: seed: expected a whole number >= 0 of at most 64 bits"),
        ({"seed": "9" * 5000}, "seed: expected a whole number"),
        ({"fold": "-1"}, "fold: expected a whole number"),
        ({"accuracy": str(10**400)}, "accuracy: expected a finite number"),
        ({"accuracy": "[" * 5000}, "accuracy: expected a finite number"),
        ({"seconds": "soon"}, "seconds: expected a number >= 0"),
        ({"settings": "{"}, "settings: expected JSON"),
        ({"settings": "3"}, "settings: expected a table"),
        ({"=cmd": "1"}, "metrics: expected names of letters"),
    ],
)
def test_a_csv_edited_by_hand_is_refused_with_its_line(tmp_path, changed, message):
    path = tmp_path / "runs.csv"
    path.write_text(csv_text(**changed))
    with pytest.raises(ValueError, match=message):
        export.read(path)


def test_a_run_that_is_twice_in_a_csv_is_refused(tmp_path):
    path = tmp_path / "runs.csv"
    text = csv_text()
    path.write_text(text + text.splitlines()[1] + "\n")
    with pytest.raises(
        ValueError, match="line 3: not a run: expected every run once, got that of line 2 again"
    ):
        export.read(path)


def test_settings_may_be_spelled_otherwise_by_hand(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text(csv_text(settings='{ "pool": {"K": 8.0}, "epochs": 2 }'))
    assert export.read(path)[0].spec.settings == '{"epochs":2,"pool":{"K":8}}'


# ---------------------------------------------------------------------------------------------------------
# what is shown

ESCAPES = ("\x1b[2J", "\x1b]0;title\x07", "\x9b31m", "\x7f", "\r", "\u202e", "\u2028", "\x00", "\b")
FORMULAS = ("=1+1", "+cmd|'/c calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "\uff1d1", "-0.5+A1")


@pytest.mark.parametrize("escape", ESCAPES)
@pytest.mark.parametrize("form", ["terminal", "markdown", "latex", "csv"])
def test_a_table_shows_control_characters(escape, form):
    name = f"a{escape}b"
    text = render(text_table(name, ["pooling", name], [[name, "1"]], [name]), form)
    assert escape not in text
    assert f"a{escape.encode('unicode_escape').decode()}b" in text.replace("\\textbackslash{}", "\\")


def test_a_newline_does_not_leave_a_comment_of_latex():
    evil = "x\n\\input{secret}\n"
    lines = render(text_table(evil, ["pooling", evil], [[evil, "1"]], [evil]), "latex").splitlines()
    assert not any(line.startswith("\\input") for line in lines)
    assert [line for line in lines if "\\input" in line] == [f"% {visible(evil)}"] * 2  # within comments


def test_markdown_has_neither_html_nor_links_of_others():
    evil = "<img src=x onerror=y> [a](http://evil)"
    text = render(text_table(evil, ["pooling", evil], [[evil, "1"]], [evil]), "markdown")
    assert "<img" not in text
    assert "](" not in text


@pytest.mark.parametrize("formula", FORMULAS)
def test_a_formula_is_text_in_a_spreadsheet(formula):
    text = render(text_table("t", ["pooling", formula], [[formula, "-0.5"]]), "csv")
    (head, line) = csv.reader(text.splitlines())
    for cell in (head[1], line[0]):
        assert not cell.startswith(("=", "+", "-", "@", "\t", "\r", "\uff1d"))
    assert line[1] == "-0.5"
    assert csv_cells.stored(csv_cells.safe(formula)) == visible(formula)


@pytest.mark.parametrize("number", ["-0.5", "+1.05 (0.48)", "-1e-05", "-0.12 ▼", "+0.00", "1.5 ± 2 [5]"])
def test_numbers_stay_numbers(number):
    assert csv_cells.safe(number) == number


def test_an_export_is_safe_and_comes_back(path, capsys):
    change(path, "UPDATE runs SET dataset = ?, machine = ?", "=HYPERLINK(1)", "\x1b[31mred")
    assert main_output("export", "mil", "--store", str(path), "--stored", capsys=capsys)


def main_output(*words: str, capsys) -> str:
    with pytest.raises(SystemExit) as stop:
        main(list(words))
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert "\x1b" not in text
    (_, line, _) = csv.reader(text.splitlines())
    assert line[1] == "'=HYPERLINK(1)"
    made = Path(words[3]).with_suffix(".csv")
    made.write_text(text)
    assert export.read(made)[0].spec.dataset == "=HYPERLINK(1)"
    return text


@pytest.mark.parametrize("task", ["mil", "graph", "image"])
def test_committed_runs_come_out_as_they_are(task, capsys):
    path = ROOT / "results" / task / "runs.csv"
    with pytest.raises(SystemExit):
        main(["export", task, "--store", str(path)])
    assert capsys.readouterr().out == path.read_text()


# ---------------------------------------------------------------------------------------------------------
# data files


def mat(tmp_path: Path, data: np.ndarray, compressed: bool = True) -> Path:
    path = tmp_path / "small.mat"
    scipy.io.savemat(path, {"data": data}, do_compression=compressed)
    return path


def test_a_sparse_mat_that_asks_for_gigabytes_is_refused(tmp_path):
    data = np.empty((2, 2), dtype=object)
    for bag in range(2):
        data[bag] = (scipy.sparse.csc_matrix(([1.0], ([0], [0])), shape=(10**6, 800)), bag)
    with pytest.raises(DatasetRefusedError, match="at most 33554432 numbers in all bags, found 1600000000"):
        read_mat(mat(tmp_path, data), "small")


def test_a_mat_of_cells_in_cells_is_refused(tmp_path):
    """scipy reads them by calls within calls, in C: a few thousand end the process."""
    cell = np.ones((1, 1))
    for _ in range(50):
        outer = np.empty((1, 1), dtype=object)
        outer[0, 0] = cell
        cell = outer
    with pytest.raises(DatasetRefusedError, match="matrices in matrices, more than 8 deep"):
        read_mat(mat(tmp_path, cell), "small")


@pytest.mark.parametrize("compressed", [True, False])
def test_a_mat_that_inflates_without_end_is_refused(tmp_path, monkeypatch, compressed):
    monkeypatch.setattr("uotpool_experiments.datasets.mat_file.MOST_BYTES", 2**20)
    path = mat(tmp_path, np.zeros((2**19, 1)), compressed)
    with pytest.raises(DatasetRefusedError, match="bytes"):
        read_mat(path, "small")


@pytest.mark.parametrize("edge", [b"99, 1", b"9223372036854775807, 1", b"-1, 1", b"0, 1"])
def test_an_edge_beyond_the_nodes_is_refused(tmp_path, edge):
    path = files.put(tmp_path, "SMALL.zip", files.tu_bytes(A=files.TEXTS["A"] + edge + b"\n"))
    with pytest.raises(DatasetRefusedError, match="nodes >= 1 and <= 5"):
        read_graphs(path)
    if edge.startswith(b"9223372036854775807"):  # asked before, where the texts are other ones
        with pytest.raises(DatasetRefusedError, match="expected numbers in"):
            digests.graph_digest(path)


def test_a_zip_bomb_is_refused(tmp_path):
    path = files.put(tmp_path, "SMALL.zip", files.tu_bytes(graph_indicator=b"1\n" * (33 * 2**20)))
    assert path.stat().st_size < 2**20
    with pytest.raises(DatasetRefusedError, match="up to 100 times their packed size"):
        read_graphs(path)


def test_a_number_beyond_float32_is_refused(tmp_path):
    path = tmp_path / "bags.csv"
    path.write_text("0,1,1e39\n1,2,0\n")
    with pytest.raises(DatasetRefusedError, match="expected finite features"):
        read_csv(path, "small")


# ---------------------------------------------------------------------------------------------------------
# the end of the command


def test_a_pipe_that_is_closed_ends_it_quietly():
    argv = command("export", "mil", "--store", str(ROOT / "results/mil/runs.csv"))
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.readline().startswith(b"task,")
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 141


def test_a_full_disk_is_an_error_in_words():
    with open("/dev/full", "w") as full:
        done = subprocess.run(command("info"), stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode != 0
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


# ---------------------------------------------------------------------------------------------------------
# kill -9


# By which the first kill is of a worker in the middle of the runs, and then of the driver.
SEED_OF_KILLS = 42


def test_a_sweep_that_is_killed_loses_and_doubles_no_run():
    """UOTPOOL_KILLS is the number of kills; test_sweep has Ctrl-C."""
    count = int(os.environ.get("UOTPOOL_KILLS", "1"))
    done = kills.run(count, seed=SEED_OF_KILLS)
    assert done["kills"] == count
    assert done["runs in the end"] == 20 * (2 + count)
