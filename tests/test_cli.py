from __future__ import annotations

import pytest

from uotpool.cli import main
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
