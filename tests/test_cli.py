from __future__ import annotations

import errno
import subprocess
import sys
from importlib import metadata

import pytest

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
