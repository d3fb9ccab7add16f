from __future__ import annotations

import errno
import io
import subprocess
import sys
from importlib import metadata

import pytest

import uotpool
from uotpool.cli import BROKEN_PIPE, COMMANDS, main
from uotpool.zoo import ENTRIES, build


def lines(capsys, *argv):
    main(list(argv))
    return capsys.readouterr().out.splitlines()


def test_poolings_lists_all_with_their_facts(capsys):
    pytest.importorskip("torch_geometric")
    head, *rows = lines(capsys, "poolings", "--dim", "12", "--hidden", "5")
    assert head.split()[:4] == ["name", "out_dim", "parameters", "edges"]
    listed = {row.split()[0]: row for row in rows[: len(ENTRIES)]}
    assert list(listed) == list(ENTRIES)
    for name, row in listed.items():
        pool = build(name, 12, 5)
        numbers = sum(parameter.numel() for parameter in pool.parameters())
        facts = [str(pool.out_dim), str(numbers), "needed" if pool.needs_edges else "-"]
        assert row.split()[1:4] == facts
        assert row.endswith(ENTRIES[name].formula)
        assert ENTRIES[name].source in row
        assert ENTRIES[name].paper in row


def test_poolings_without_pyg_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setattr("uotpool.cli._version", lambda package: None)
    rows = {row.split()[0]: row for row in lines(capsys, "poolings") if row}
    assert "install the extra pyg" in rows["set2set"]
    assert rows["set2set"].split()[1] == "?"
    assert "install" not in rows["mean"]


@pytest.mark.parametrize("argv", [["poolings", "--dim", "0"], ["poolings", "--hidden", "-1"]])
def test_a_bad_number_is_a_usage_error(capsys, argv):
    with pytest.raises(SystemExit) as exit:
        main(argv)
    assert exit.value.code == 2
    assert f"{argv[1][2:]}: expected an integer >= 1" in capsys.readouterr().err


class Failing(io.StringIO):
    """An output in memory, so without a file descriptor, that fails when written, or when flushed."""

    def __init__(self, error: OSError, *, late: bool = False) -> None:
        super().__init__()
        self.error, self.late = error, late

    def write(self, text: str) -> int:
        if self.late:
            return len(text)
        raise self.error

    def flush(self) -> None:
        raise self.error


@pytest.mark.parametrize("late", [False, True])
def test_a_broken_output_without_a_descriptor(monkeypatch, late):
    monkeypatch.setattr(sys, "stdout", Failing(BrokenPipeError(errno.EPIPE, "gone"), late=late))
    with pytest.raises(SystemExit) as exit:
        main(["info"])
    assert exit.value.code == BROKEN_PIPE


@pytest.mark.parametrize("late", [False, True])
def test_a_full_output_without_a_descriptor(monkeypatch, capsys, late):
    monkeypatch.setattr(sys, "stdout", Failing(OSError(errno.ENOSPC, "No space left on device"), late=late))
    with pytest.raises(SystemExit) as ended:
        main(["info"])
    assert ended.value.code == 2
    assert "No space left" in capsys.readouterr().err


@pytest.mark.parametrize("late", [False, True])
def test_an_error_of_the_system_that_is_of_no_file_is_not_hidden(monkeypatch, late):
    """A bad descriptor is a bug of ours: its traceback is what helps."""
    monkeypatch.setattr(sys, "stdout", Failing(OSError(errno.EBADF, "Bad file descriptor"), late=late))
    with pytest.raises(OSError, match="Bad file descriptor"):
        main(["info"])


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file", "runs.db"), "runs.db: no such file\n"),
        (PermissionError(errno.EACCES, "Permission denied", "runs.db"), "runs.db: permission denied\n"),
        (OSError("cannot listen on localhost"), "cannot listen on localhost\n"),
        (OSError(errno.ENOSPC, "No space left on device"), "[Errno 28] No space left on device\n"),
        (OSError(errno.EBADF, "Bad file descriptor"), None),
        (ChildProcessError(errno.ECHILD, "No child processes"), None),
    ],
    ids=str,
)
def test_errors_of_files_are_one_line_and_others_a_traceback(monkeypatch, capsys, error, shown):
    def raise_it() -> str:
        raise error

    monkeypatch.setattr("uotpool.cli.info", raise_it)
    with pytest.raises(SystemExit if shown else type(error)) as ended:
        main(["info"])
    if shown:
        assert ended.value.code == 2
        assert capsys.readouterr().err == f"uotpool info: error: {shown}"


def test_commands_that_need_a_missing_package_are_left_out(monkeypatch, capsys):
    """The commands of the library work beside them. A module of our own that is missing is an error of ours."""

    def with_commands_of(module: str) -> None:
        found = metadata.EntryPoint("experiments", f"{module}:add_parsers", COMMANDS)
        monkeypatch.setattr(metadata, "entry_points", lambda group: [found])

    with_commands_of("no_such_package.cli")
    assert lines(capsys, "info")
    main(["info"])
    assert "no_such_package.cli is left out: it needs no_such_package" in capsys.readouterr().err
    with_commands_of("uotpool.no_such_module")
    with pytest.raises(ModuleNotFoundError, match=r"uotpool\.no_such_module"):
        main(["info"])


def test_version(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"uotpool {uotpool.__version__}\n"


def test_no_command_prints_help(capsys):
    head, *rest = lines(capsys)
    assert head.startswith("usage: uotpool")
    assert any("poolings" in line for line in rest)


@pytest.mark.process
def test_a_closed_pipe_ends_without_a_message():
    code = "import sys; from uotpool.cli import main; sys.stdin.readline(); main(['info'])"
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, stderr=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    process.stdin.write(b"\n")
    process.stdin.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == BROKEN_PIPE
