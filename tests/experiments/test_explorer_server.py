"""The server of the explorer, over HTTP, and its command."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import pytest

pytest.importorskip("dash", reason="NOT RUN: needs dash")

from uotpool.experiments.explorer import server


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
    """Status and body."""
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
        ("192.168.1.5:8050", "0.0.0.0", True),
        ("evil.example", "0.0.0.0", False),
        ("evil.example", "::", False),
        ("[fe80::1]:80", "::", True),
        (socket.gethostname(), "0.0.0.0", True),
        ("box.local", "box.local", True),
        ("192.168.1.5", "127.0.0.1", False),
    ],
)
def test_which_names_a_server_answers_to(name, host, expected):
    assert server.allowed(name, host) == expected


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


COMMAND = """
import sys
sys.modules[{blocked!r}] = None
from uotpool.cli import main
main(["explore", "--no-browser", "--port", "0"])
"""


@pytest.mark.parametrize("blocked", ["dash", "rich"])
def test_without_dash_the_command_says_what_to_install(blocked):
    done = subprocess.run(
        [sys.executable, "-c", COMMAND.format(blocked=blocked)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert f"needs {blocked}" in done.stderr
    assert "install the extra `explore`" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="NOT RUN: has other signals")
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_the_command_says_where_warns_and_ends_by_ctrl_c(host):
    # Where tests run in the background, a new process ignores Ctrl-C.
    heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    argv = ["explore", "--no-browser", "--port", "0", "--host", host]
    command = [sys.executable, "-c", f"{heed}; from uotpool.cli import main; main({argv})"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = process.stdout.readline()
    assert line.startswith(f"uotpool explore: http://{host}:")
    number = line.split(":")[3].partition("/")[0]
    assert ask(f"http://127.0.0.1:{number}/")[0] == 200
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 0
    warning = f"warning: --host {host} lets others on the network open this page; it has no password\n"
    assert errors == ("" if host == "127.0.0.1" else warning) + "stopped\n"
