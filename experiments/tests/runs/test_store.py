"""The run store and the names of runs in it."""

from __future__ import annotations

import json
import multiprocessing
import sqlite3
from dataclasses import replace

import pytest
from uotpool_experiments.runs.store import SCHEMA, Store, StoreBusyError, StoreWriteError
from uotpool_experiments.tasks.spec import Result, RunSpec, canonical

from experiments.tests.helpers import FACTS, mil_spec

SPEC = mil_spec({"epochs": 3, "pool": {"K": 2}})
RESULT = Result(
    metrics={"accuracy": 0.75, "auc": 0.1 + 0.2, "loss": 1e-300},
    epochs=[{"train_loss": 0.7, "validation_loss": 0.8}, {"train_loss": 0.6, "validation_loss": 0.7}],
    details={"configuration": {"lr": 5e-4}, "epoch": 3, "split": {"train": "AA=="}, "mass": None},
    parameters=1234,
    seconds=1.5,
    peak_mib=321.25,
)


def column(store, name):
    return [
        value for (value,) in sqlite3.connect(store.path).execute(f"SELECT {name} FROM runs ORDER BY rowid")
    ]


def test_what_is_saved_comes_back(store):
    store.save(SPEC, "code", RESULT, FACTS, 1.25)
    (found,) = Store(store.path).rows()
    assert found.spec == SPEC
    assert found.spec.options == {"epochs": 3, "pool": {"K": 2}}
    assert (found.fingerprint, found.status, found.attempts, found.error) == ("code", "done", 1, None)
    assert (found.metrics, found.details) == (RESULT.metrics, RESULT.details)  # to the last bit
    assert (found.parameters, found.seconds, found.cpu_seconds, found.peak_mib) == (1234, 1.5, 1.25, 321.25)
    assert store.epochs(SPEC.key("code")) == RESULT.epochs
    assert store.epochs("unknown") == []
    assert column(store, "versions || machine || commit_id") == ["{}hereabc"]
    (finished,) = column(store, "finished")
    assert finished.endswith("Z")


def test_the_file_is_in_wal_mode_and_safe_against_a_crash_of_the_machine(store):
    assert sqlite3.connect(store.path).execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert store._db.execute("PRAGMA synchronous").fetchone() == (2,)


def test_rows_are_chosen_by_columns_and_keep_their_order(store):
    specs = [
        mil_spec(pooling=p, protocol=r, fold=f)
        for p in ("mean", "max")
        for r in ("fair", "paper")
        for f in (1, 0)
    ]
    for spec in specs:
        store.save(spec, "code", RESULT, FACTS)
    store.save_failure(mil_spec(pooling="add"), "code", "broken", FACTS)
    assert [row.spec for row in store.rows()] == specs
    assert [row.spec for row in store.rows(pooling="max", protocol="fair")] == specs[4:6]
    assert [row.spec.pooling for row in store.rows("failed")] == ["add"]
    assert store.rows(task="mil", settings="{}") == []
    with pytest.raises(ValueError, match=r"where: expected columns among.*'color'"):
        store.rows(color="red")


def test_a_failed_run_is_kept_counted_and_then_done(store):
    store.save_failure(SPEC, "code", "Traceback: first", FACTS)
    (found,) = store.rows("failed")
    assert (found.error, found.attempts, found.metrics, found.details) == ("Traceback: first", 1, {}, {})
    assert store.finished([SPEC.key("code")]) == set()
    store.save_failure(SPEC, "code", "Traceback: second", {})
    (found,) = store.rows("failed")
    assert (found.error, found.attempts) == ("Traceback: second", 2)
    assert column(store, "versions") == column(store, "machine") == [None]  # not those of the first
    store.save(SPEC, "code", RESULT, FACTS)
    assert store.rows("failed") == []
    (found,) = store.rows()
    assert (found.status, found.error, found.attempts, found.metrics) == ("done", None, 3, RESULT.metrics)
    assert store.finished([SPEC.key("code"), "unknown"]) == {SPEC.key("code")}


def test_a_finished_run_is_never_overwritten(store):
    store.save(SPEC, "code", RESULT, FACTS)
    before = sqlite3.connect(store.path).execute("SELECT rowid, * FROM runs").fetchall()
    store.save(SPEC, "code", replace(RESULT, metrics={"accuracy": 0.1}), FACTS)
    store.save_failure(SPEC, "code", "late", FACTS)
    assert sqlite3.connect(store.path).execute("SELECT rowid, * FROM runs").fetchall() == before
    store.save(SPEC, "other code", RESULT, FACTS)  # another run
    assert len(store.rows()) == 2


def test_two_writers(store):
    with store.writing():
        with pytest.raises(StoreBusyError, match=rf"{store.path}.*--store"), Store(store.path).writing():
            pytest.fail("two at once")
        store.save(SPEC, "code", RESULT, FACTS)
    with Store(store.path).writing():
        pass


def test_the_lock_ends_with_its_process(store):
    context = multiprocessing.get_context("fork")
    ready = context.Event()

    def hold():
        with Store(store.path).writing():
            ready.set()
            context.Event().wait()

    process = context.Process(target=hold)
    process.start()
    assert ready.wait(20)
    with pytest.raises(StoreBusyError), store.writing():
        pytest.fail("two at once")
    process.kill()
    process.join()
    with store.writing():
        pass


def test_readers_work_while_a_writer_is_in_a_transaction(store):
    store.save(SPEC, "code", RESULT, FACTS)
    with store.writing():
        writer = sqlite3.connect(store.path, isolation_level=None)
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("UPDATE runs SET metrics = '{}'")
        reader = Store(store.path)  # a new one, which looks at the schema
        assert [row.metrics for row in reader.rows()] == [RESULT.metrics]
        assert [row.metrics for row in store.rows()] == [RESULT.metrics]
        writer.execute("ROLLBACK")
        writer.close()
        reader.close()


@pytest.mark.parametrize("content", [b"this is no database, but some text\n" * 100, b"\x00" * 5000])
def test_a_file_that_is_no_database(tmp_path, content):
    path = tmp_path / "text.sqlite"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"store: expected a run store of uotpool, got .*text\.sqlite"):
        Store(path)
    assert path.read_bytes() == content


def test_another_database_and_a_folder(tmp_path):
    other = sqlite3.connect(tmp_path / "other.sqlite")
    other.execute("CREATE TABLE runs (distance REAL)")
    other.commit()
    for path in (tmp_path / "other.sqlite", tmp_path):
        with pytest.raises(ValueError, match="store: expected a run store of uotpool"):
            Store(path)
    other.close()


# ---------------------------------------------------------------------------------------------------------
# files of other versions

OLD = "key, task, dataset, pooling, protocol, fold, seed, settings, fingerprint, status, seconds"


def old_writer(path):
    """The connection of a process with the code before `cpu_seconds`."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.executescript(SCHEMA)
    return db


def write_as_before(db, fold):
    spec = mil_spec(fold=fold)
    values = [spec.key("code"), *spec.as_dict().values(), "code", "done", 2.5]
    db.execute(f"INSERT INTO runs ({OLD}) VALUES ({', '.join('?' * len(values))})", values)


def version(path):
    (found,) = sqlite3.connect(path).execute("PRAGMA user_version").fetchone()
    return found


def columns(path):
    return [name for _, name, *_ in sqlite3.connect(path).execute("PRAGMA table_info(runs)")]


def test_an_old_file_is_read_as_it_is(tmp_path):
    path = tmp_path / "old.sqlite"
    db = old_writer(path)
    write_as_before(db, 0)
    reader = Store(path, readonly=True)
    assert [(row.seconds, row.cpu_seconds) for row in reader.rows()] == [(2.5, None)]
    assert version(path) == 0
    assert "cpu_seconds" not in columns(path)
    reader.close()
    db.close()


def test_an_old_file_gets_the_new_column_while_its_writer_goes_on(tmp_path):
    path = tmp_path / "old.sqlite"
    db = old_writer(path)
    write_as_before(db, 0)
    before = db.execute("SELECT * FROM runs").fetchall()
    reader = Store(path, readonly=True)
    new = Store(path)
    assert version(path) == 1
    assert [(*row, None) for row in before] == db.execute("SELECT * FROM runs").fetchall()
    write_as_before(db, 1)
    new.save(mil_spec(fold=2), "code", RESULT, FACTS, 1.25)
    assert [row.cpu_seconds for row in new.rows()] == [None, None, 1.25]
    assert [row.seconds for row in reader.rows()] == [2.5, 2.5, 1.5]  # open since before
    db.executescript(SCHEMA)  # the old code opens it again
    assert columns(Store(path).path) == [*columns(path)[:-1], "cpu_seconds"]
    for opened in (new, reader, db):
        opened.close()


@pytest.mark.parametrize("readonly", [True, False])
def test_a_file_of_a_newer_version_is_refused(store, readonly):
    store._db.execute("PRAGMA user_version = 99")
    with pytest.raises(ValueError, match=rf"{store.path} of version 99, written by a newer uotpool"):
        Store(store.path, readonly=readonly)


# ---------------------------------------------------------------------------------------------------------
# a file that cannot be written


@pytest.mark.parametrize(
    ("trouble", "remedy", "message"),
    [
        ("PRAGMA query_only = ON", "PRAGMA query_only = OFF", "attempt to write a readonly database"),
        ("PRAGMA max_page_count = 1", "PRAGMA max_page_count = 100000", "database or disk is full"),
    ],
)
def test_what_to_do_is_said_and_what_is_there_is_kept(store, trouble, remedy, message):
    store.save(SPEC, "code", RESULT, FACTS)
    large = replace(RESULT, details={"text": "x" * 100_000})
    store._db.execute(trouble)  # the same errors as of a file system
    for save in (
        lambda: store.save(mil_spec(fold=1), "code", large, FACTS),
        lambda: store.save_failure(mil_spec(fold=1), "code", "x" * 100_000, FACTS),
    ):
        with pytest.raises(
            StoreWriteError, match=rf"cannot write to {store.path}: {message}.*the same command"
        ):
            save()
    assert [row.spec for row in store.rows()] == [SPEC]
    store._db.execute(remedy)
    store.save(mil_spec(fold=1), "code", large, FACTS)
    assert len(store.rows()) == 2


def test_a_file_that_another_program_holds(store):
    other = sqlite3.connect(store.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    store._db.execute("PRAGMA busy_timeout = 10")  # milliseconds
    with pytest.raises(StoreWriteError, match=rf"{store.path}: database is locked"):
        store.save(SPEC, "code", RESULT, FACTS)
    other.close()
    store.save(SPEC, "code", RESULT, FACTS)


def test_the_folder_of_a_store_is_made(tmp_path):
    Store(tmp_path / "a" / "b" / "runs.sqlite").close()
    assert (tmp_path / "a" / "b" / "runs.sqlite").exists()


# ---------------------------------------------------------------------------------------------------------
# names of runs


def test_equal_settings_have_one_key():
    ways = [
        {"epochs": 3, "pool": {"K": 2, "solver": "sinkhorn"}},
        {"pool": {"solver": "sinkhorn", "K": 2}, "epochs": 3},
        json.loads('{ "pool": {"K": 2, "solver": "sinkhorn"}, "epochs": 3 }'),
    ]
    assert len({mil_spec(way).key("code") for way in ways}) == 1
    assert len({mil_spec(way) for way in ways}) == 1
    assert RunSpec.make(None, **{k: v for k, v in SPEC.as_dict().items() if k != "settings"}).settings == "{}"


def test_equal_numbers_have_one_key():
    """10 in a sweep file and 10.0 on the command line are one learning rate."""
    assert mil_spec({"pool_lr": 10}).key("code") == mil_spec({"pool_lr": 10.0}).key("code")


def test_every_choice_and_the_code_change_the_key():
    changes = {
        "task": "graphs",
        "dataset": "musk1",
        "pooling": "max",
        "protocol": "paper",
        "fold": 1,
        "seed": 1,
    }
    keys = [mil_spec().key("code"), mil_spec().key("other"), mil_spec({}).key("code")]
    keys += [mil_spec(**{name: value}).key("code") for name, value in changes.items()]
    keys += [mil_spec({"epochs": 3}).key("code"), mil_spec({"epochs": 2, "lr": 1e-3}).key("code")]
    assert len(set(keys)) == len(keys) == 11


def test_keys_stay_the_same_from_version_to_version():
    """A stored run is found by its key; a change of the way it is made loses all."""
    assert mil_spec({}).key("code") == "6694da95273211caf6efd99525a64c34"


def test_settings_must_be_json():
    with pytest.raises(ValueError, match="JSON"):
        canonical({"lr": float("nan")})
    with pytest.raises(TypeError):
        mil_spec({"lr": object()})


def test_a_spec_says_what_it_is():
    assert str(SPEC) == 'mil/digits mean fair fold 0 seed 0 {"epochs":3,"pool":{"K":2}}'
    assert str(mil_spec({})) == "mil/digits mean fair fold 0 seed 0"
