"""The server of the explorer, over HTTP, and its command."""

from __future__ import annotations

import contextlib
import itertools
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest

pytest.importorskip("dash", reason="NOT RUN: needs dash")

from uotpool_experiments.explorer import server

from experiments.tests.helpers import wait_until

POSTED = (
    b"POST /_dash-update-component HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: 100\r\n\r\n"
)


@pytest.fixture(scope="module")
def running():
    """A server in a thread, and its address."""
    made, address = server.serve("127.0.0.1", 0)
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield address
    made.shutdown()
    thread.join()
    made.server_close()


def ask(address, path="", data=None, **headers):
    """Return the status and the body."""
    request = urllib.request.Request(address + path, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode(), answer.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(), error.headers


def test_the_page_is_served_and_names_no_other_host(running):
    status, text, headers = ask(running)
    assert status == 200
    assert 'src="http' not in text
    assert 'href="http' not in text
    assert '"disable_version_check":true' in text.replace(" ", "")
    assert '"ui":false' in text.replace(" ", "")
    assert "default-src 'self'" in headers["Content-Security-Policy"]


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "10.0.0.1", "[", ""]
)
def test_another_host_is_refused(running, host):
    assert ask(running, Host=host)[0] in (400, 403)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:1", "[::1]:8050", "LOCALHOST:9"])
def test_this_host_is_not(running, host):
    assert ask(running, Host=host)[0] == 200


def test_a_page_of_another_site_is_refused(running):
    assert ask(running, Origin="http://evil.example")[0] == 403
    assert ask(running, Origin="null")[0] == 403
    assert ask(running, Origin=running.rstrip("/"))[0] == 200


@pytest.mark.parametrize(
    ("name", "host", "expected"),
    [
        ("192.168.1.5:8050", "0.0.0.0", False),
        ("evil.example", "0.0.0.0", False),
        ("evil.example", "::", False),
        ("[fe80::1]:80", "::", False),
        ("[::1]:80", "::", True),
        (socket.gethostname(), "0.0.0.0", True),
        ("box.local", "box.local", True),
        ("192.168.1.5", "127.0.0.1", False),
        ("Other.Example:1", "0.0.0.0", True),
    ],
)
def test_which_names_a_server_answers_to(name, host, expected):
    assert server.allowed(name, server.own_names(host, None) | {"other.example"}) == expected


class Local:
    """A connection that was made to this address of the machine."""

    def __init__(self, address):
        self.getsockname = lambda: (address, 80)


@pytest.mark.parametrize(
    ("name", "reached", "expected"),
    [
        ("192.168.1.5", "192.168.1.5", True),
        ("192.168.1.5:8050", "::ffff:192.168.1.5", True),
        ("192.168.1.6", "192.168.1.5", False),
        ("[fe80::1]", "fe80::1%eth0", True),
        ("[fe80:0::1]:8050", "fe80::1", True),
    ],
)
def test_on_all_addresses_a_server_answers_to_the_one_that_was_reached(name, reached, expected):
    for host in ("0.0.0.0", "::"):
        assert server.allowed(name, server.own_names(host, Local(reached))) == expected


@contextlib.contextmanager
def serving(*arguments):
    made, address = server.serve(*arguments)
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    try:
        yield address
    finally:
        made.shutdown()
        thread.join()
        made.server_close()


def test_on_all_addresses_a_foreign_host_header_is_refused():
    """The server once accepted any address literal over a real socket."""
    with serving("0.0.0.0", 0, ["Box.Example"]) as address:
        here = address.replace("0.0.0.0", "127.0.0.1")
        found = {host: ask(here, Host=host)[0] for host in ("10.1.2.3", "evil.example", "8.8.8.8:80")}
        assert set(found.values()) == {403}
        for host in ("127.0.0.1", "localhost:1", socket.gethostname(), "box.example:80"):
            assert ask(here, Host=host)[0] == 200
        own = socket.gethostbyname(socket.gethostname())
        assert ask(address.replace("0.0.0.0", own), Host=own)[0] == 200


HALVES = (b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: localhost\r\n", POSTED + b"{")


def handlers():
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


def test_half_a_request_is_given_up(monkeypatch):
    """So is a request that comes one byte at a time. Each once held a thread for ever."""
    monkeypatch.setattr(server, "RECEIVE", 1.5)
    with serving("127.0.0.1", 0) as address, contextlib.ExitStack() as clients:
        where = urlsplit(address)
        before = handlers()
        opened = [clients.enter_context(socket.create_connection((where.hostname, where.port))) for _ in HALVES]
        for client, half in zip(opened, HALVES, strict=True):
            client.sendall(half)
        slow = clients.enter_context(socket.create_connection((where.hostname, where.port)))
        wait_until(lambda: handlers() == before + len(HALVES) + 1, 10, "a thread for each")
        end = time.monotonic() + 30
        with contextlib.suppress(ConnectionError):
            for letter in itertools.cycle(b"GET / HTTP/1.1\r\nX-Slow: " + b"a" * 40):
                assert time.monotonic() < end, "a request that comes slowly is never given up"
                slow.sendall(bytes([letter]))
                time.sleep(0.1)
        wait_until(lambda: handlers() == before, 10, "all threads given up")
        assert ask(address)[0] == 200


def test_fifty_clients_at_once_with_half_requests_among_them(monkeypatch):
    monkeypatch.setattr(server, "RECEIVE", 3.0)
    with serving("127.0.0.1", 0) as address, contextlib.ExitStack() as clients:
        where = urlsplit(address)
        before = handlers()
        for i in range(25):
            client = clients.enter_context(socket.create_connection((where.hostname, where.port)))
            client.sendall(HALVES[i % len(HALVES)])
        with ThreadPoolExecutor(50) as pool:
            found = list(pool.map(lambda _: ask(address)[0], range(200)))
        assert found == [200] * 200
        wait_until(lambda: handlers() == before, 20, "all threads given up")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b'{"output": "x"}',
        b'{"output": 3, "inputs": 4}',
        b"\xff" * 100,
        b"A" * (server.MOST_REQUEST + 1),
    ],
)
def test_the_server_survives_a_bad_request(running, data):
    status, text, _ = ask(running, "_dash-update-component", data, **{"Content-Type": "application/json"})
    assert status >= 400
    assert "Traceback" not in text
    assert ask(running)[0] == 200


def test_a_busy_port_is_replaced_only_if_nobody_asked_for_it(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1, port {number}"):
            server.bind("127.0.0.1", number)
        monkeypatch.setattr(server, "PORT", number)
        with server.bind("127.0.0.1", None) as other:
            assert other.getsockname()[1] != number


BLOCKED = """
import sys
from uotpool.cli import main
for name in ("dash", "werkzeug"):
    sys.modules[name] = None
    try:
        main(["explore", "--no-browser", "--port", "0"])
    except SystemExit as end:
        print(end.code)
    del sys.modules[name]
"""


def test_without_dash_the_command_says_what_to_install():
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout.split() == ["1", "1"]
    for name, line in zip(("dash", "werkzeug"), done.stderr.splitlines(), strict=True):
        assert f"needs {name}" in line
        assert "pip install 'uotpool-experiments[explore]'" in line


SERVERS = """
import signal
from uotpool.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests run in the background
for host in ("127.0.0.1", "0.0.0.0"):
    try:
        main(["explore", "--no-browser", "--port", "0", "--host", host])
    except SystemExit as end:
        print(end.code, flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="NOT RUN: has other signals")
def test_the_command_says_where_warns_and_ends_by_ctrl_c():
    """For this machine, and for all: one after the other in one process."""
    command = [sys.executable, "-c", SERVERS]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for host in ("127.0.0.1", "0.0.0.0"):
        line = process.stdout.readline()
        assert line.startswith(f"uotpool explore: http://{host}:")
        number = line.split(":")[3].partition("/")[0]
        assert ask(f"http://127.0.0.1:{number}/")[0] == 200
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "0\n"
    _, errors = process.communicate(timeout=120)
    warning = "warning: --host 0.0.0.0 lets others on the network open this page; it has no password\n"
    assert errors == f"stopped\n{warning}stopped\n"
