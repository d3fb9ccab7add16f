"""Where runs run does not change what they give, and nothing that happens to one run hurts another."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from uotpool_experiments.runs import worker
from uotpool_experiments.runs.executors import Failed, Finished, LocalExecutor, Progress, RayExecutor, Started
from uotpool_experiments.runs.worker import execute
from uotpool_experiments.tasks.spec import canonical

from experiments.tests.helpers import alive, children, is_worker, mil_spec, numbers, quiet, toy, wait_until

SPECS = [mil_spec(pooling="mean"), mil_spec(pooling="uotp-sinkhorn", fold=1)]
MISSING = mil_spec(dataset="messidor")  # not at hand


@pytest.fixture(autouse=True)
def _no_data(monkeypatch, tmp_path):
    """Hide the data from workers too, which get the environment."""
    monkeypatch.setenv("UOTPOOL_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("UOTPOOL_OFFLINE", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="module")
def here():
    return [canonical(numbers(execute([spec], quiet)[0])) for spec in SPECS]


def workers() -> list[int]:
    return [pid for pid in children(os.getpid()) if is_worker(pid)]


def results(events):
    return {event.spec: canonical(numbers(event.result)) for event in events if isinstance(event, Finished)}


def test_one_worker_gives_the_same_numbers_one_that_hangs_is_stopped_and_closing_stops_the_next(here):
    """In one sweep, since it takes seconds to start a worker."""
    executor = LocalExecutor(1, timeout=600)
    seen, hung = [], []
    events = executor.run([*SPECS, toy("succeed"), toy("sleep"), toy("sleep", 1)])
    for event in events:
        seen.append(event)
        if event.spec == toy("sleep") and isinstance(event, Progress):  # it is loaded, and sleeps
            hung = workers()
            executor._timeout = 0.1
        elif isinstance(event, Failed):
            executor._timeout = 600
        elif event.spec == toy("sleep", 1) and isinstance(event, Progress):  # the others go on
            hung += workers()
            events.close()
    assert not workers()
    assert len(hung) == 2
    assert not any(map(alive, hung))
    (failed,) = [event for event in seen if isinstance(event, Failed)]
    assert failed == Failed(toy("sleep"), "no result after 0.1 seconds")

    before = [event for event in seen if event.spec not in (toy("sleep"), toy("sleep", 1))]
    assert [results(before)[spec] for spec in SPECS] == here
    order = [type(event) for event in before if not isinstance(event, Progress)]
    assert order == [Started, Finished] * 3  # one at a time, in order
    progress = [(event.done, event.total) for event in before if isinstance(event, Progress)]
    assert progress[:4] == [(1, 8), (2, 8), (2, 8), (3, 8)]
    assert (8, 8) in progress
    assert progress[-2:] == [(1, 2), (2, 2)]
    cost = [(event.cpu_seconds, event.result.seconds) for event in before if isinstance(event, Finished)]
    assert all(0 < cpu < wall + 0.1 for cpu, wall in cost)  # one thread
    assert cost[-1][0] < 0.5  # without the loading of torch


def test_two_workers_and_all_that_can_happen_to_a_run(here, monkeypatch):
    """Numbers are as in this process. A run raises, a worker dies, another in mid-message: the rest finish."""
    monkeypatch.setattr(worker, "facts", lambda: pytest.fail("facts are those of the worker"))
    specs = [SPECS[0], toy("exit"), SPECS[1], toy("raise"), toy("succeed", 1), toy("succeed", 2), toy("cut")]
    events = list(LocalExecutor(2).run(specs))
    found = results(events)
    assert [found[spec] for spec in SPECS] == here
    assert {toy("succeed", 1), toy("succeed", 2)} <= set(found)
    failed = {event.spec: event.error for event in events if isinstance(event, Failed)}
    assert set(failed) == {toy("exit"), toy("raise"), toy("cut")}
    facts = {event.spec: event.facts for event in events if isinstance(event, Finished | Failed)}
    assert facts.pop(toy("exit")) == facts.pop(toy("cut")) == {}  # nobody is left to say
    assert all("torch" in json.loads(found["versions"]) for found in facts.values())
    assert failed[toy("exit")] == "the worker process died with exit code 7"
    assert failed[toy("cut")] == f"the worker process died with exit code {-signal.SIGKILL}"
    assert failed[toy("raise")].startswith("Traceback (most recent call last)")
    assert failed[toy("raise")].strip().endswith("ArithmeticError: the toy is broken")
    assert [event.spec for event in events if isinstance(event, Started)] == specs
    ended = [event.spec for event in events if isinstance(event, Finished | Failed)]
    assert sorted(map(str, ended)) == sorted(map(str, specs))  # each once
    assert not workers()


def test_closing_stops_workers_that_start_which_are_no_more_than_the_runs_and_hear_no_ctrl_c():
    events = LocalExecutor(8).run([toy("sleep")])
    next(events)
    wait_until(workers, 20, "a worker")
    # Ctrl-C is the driver's, from the first moment: a worker that still loads torch would print a traceback.
    status = Path(f"/proc/{workers()[0]}/status").read_text()
    deaf = [int(mask, 16) for mask in re.findall(r"Sig(?:Ign|Blk):\s*(\w+)", status)]
    assert any(mask >> (signal.SIGINT - 1) & 1 for mask in deaf)
    running = workers()
    assert len(running) == 1
    events.close()
    assert not any(map(alive, running))
    assert not workers()


def test_an_executor_without_runs_or_workers():
    assert list(LocalExecutor(2).run([])) == []
    with pytest.raises(ValueError, match="workers: expected a number >= 1, got 0"):
        LocalExecutor(0)
    with pytest.raises(ValueError, match="timeout: expected a number of seconds > 0, got 0"):
        LocalExecutor(1, timeout=0)


@pytest.mark.filterwarnings(
    # Ray leaves sockets and files to the garbage collector, and warns of what it will change itself.
    "ignore::ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
    "ignore:.*:FutureWarning:ray.*",
    "ignore:.*:DeprecationWarning",
)
def test_ray_gives_the_same_numbers(here, monkeypatch, tmp_path):
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(worker, "facts", lambda: pytest.fail("facts are those of the worker"))
    try:
        executor = RayExecutor("local", 2)
        assert executor.workers == 2
        assert "listens on 127.0.0.1 only" in executor.listens
        events = list(executor.run([*SPECS, MISSING]))
        # Of a cluster that is there, no more than asked for, and it is left as it is.
        limited = RayExecutor("local", 1)
        one_by_one = list(limited.run([toy("succeed", 1), toy("succeed", 2)]))
        late = RayExecutor("local", 1, timeout=1)
        stopped = list(late.run([toy("sleep")]))
        late.close()
        assert ray.is_initialized()
        executor.close()
        assert not ray.is_initialized()
    finally:
        ray.shutdown()
    assert limited.workers == 1
    assert [type(event) for event in one_by_one] == [Started, Finished] * 2
    assert stopped == [Started(toy("sleep")), Failed(toy("sleep"), "no result after 1 seconds")]
    finished = [event for event in events if isinstance(event, Finished)]
    assert all("torch" in json.loads(event.facts["versions"]) and event.cpu_seconds > 0 for event in finished)
    assert [results(events)[spec] for spec in SPECS] == here
    (failed,) = [event for event in events if isinstance(event, Failed)]
    assert failed.spec == MISSING
    assert failed.error.startswith("Traceback")
    assert str(tmp_path) in failed.error  # UOTPOOL_DATA of the driver, which the workers know
    assert [event.spec for event in events if isinstance(event, Started)] == [*SPECS, MISSING]


LISTENING = """
import ipaddress, json, os
import psutil
from uotpool_experiments.runs.executors import RayExecutor

executor = RayExecutor("local", 1)
here = psutil.Process()
found = []
for process in (here, *here.children(recursive=True)):
    for connection in process.net_connections("inet"):
        if connection.status == psutil.CONN_LISTEN:
            address = ipaddress.ip_address(connection.laddr.ip)
            found.append([process.name(), str(getattr(address, "ipv4_mapped", None) or address)])
executor.close()
print(json.dumps(found))
"""


def test_a_local_ray_listens_on_this_machine_only():
    """In a process of its own: Ray reads its settings when it is imported."""
    pytest.importorskip("ray")
    pytest.importorskip("psutil")  # of torch_geometric
    env = os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"}
    done = subprocess.run(
        [sys.executable, "-c", LISTENING], env=env, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert {"gcs_server", "raylet"} <= {name for name, _ in found}
    assert {address for _, address in found} == {"127.0.0.1"}


def test_a_ray_that_others_could_reach_is_ended():
    """This happens where another part of the program has imported Ray before."""
    pytest.importorskip("ray")
    script = "import ray; from uotpool_experiments.runs.executors import RayExecutor; RayExecutor('local', 1)"
    env = os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 1
    assert "--ray: expected a cluster on the loopback address only, got one on " in done.stderr


def test_a_ray_address_where_nobody_is(monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_NUM_REDIS_GET_RETRIES", "2")  # which it would set itself
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(
        ConnectionError, match=f"--ray: expected a cluster, but nobody answers at 127.0.0.1:{port}"
    ):
        RayExecutor(f"127.0.0.1:{port}")
    for address in ("nonsense", "here:", ":6379", "here:x", "here:99999"):
        with pytest.raises(ValueError, match=f"--ray: expected local, auto or HOST:PORT, got '{address}'"):
            RayExecutor(address)


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'uotpool-experiments\[ray\]'"):
        RayExecutor("local")
