"""tools/compare_tables.py tells a changed number from a changed word."""

from __future__ import annotations

from pathlib import Path

from tools import compare_tables


def write(folder: Path, **files: str) -> Path:
    (folder / "mil").mkdir(parents=True)
    for name, text in files.items():
        (folder / "mil" / name.replace("_", ".")).write_text(text)
    return folder


def test_differences_of_two_trees(tmp_path):
    page = (
        "<style>a</style><p title='{}'>one {} three</p><script>{}</script><img src='data:image/png;base64,{}'>"
    )
    old = write(
        tmp_path / "old",
        a_csv="x,1\n",
        a_md="say it so",
        a_html=page.format("a", "two", "f()", "QUJD"),
        b_md="b",
    )
    new = write(
        tmp_path / "new",
        a_csv="x,1\n",
        a_md="say it\nthus",
        a_html=page.format("b", "zwei", "g()", "QUJE"),
        b_md=" b",
    )
    lines, words_only = compare_tables.compare(old, new)
    assert words_only
    assert lines == [
        "mil/a.html: ... one [-two-] [+zwei+]",
        "mil/a.md: ... say it [-so-] [+thus+]",
        "4 files in both; CSV files are the same; words differ in 2 pages",
    ]
    (new / "mil" / "a.csv").write_text("x,1.0\n")
    lines, words_only = compare_tables.compare(old, new)
    assert not words_only
    assert "mil/a.csv: bytes differ" in lines
    (new / "mil" / "a.csv").unlink()
    lines, words_only = compare_tables.compare(old, new)
    assert not words_only
    assert f"mil/a.csv: only in {old}" in lines
