"""Read machine code: registers, spills, and the instructions of the innermost loops."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import triton

TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"


class Loop(NamedTuple):
    """An innermost loop: its instructions, and those among them of the unit for exp, log and 1 / x."""

    instructions: int
    special: int


@dataclass(frozen=True)
class Code:
    """A kernel as the machine gets it.

    Attributes:
        registers: registers of a thread (on AMD vector registers, accumulators among them).
        spills: instructions that move a register to memory and back, in the whole kernel.
        instructions: how long the kernel is.
        loops: the innermost loops in the order of the code.
    """

    registers: int
    spills: int
    instructions: int
    loops: tuple[Loop, ...]


def read(kernel: Any) -> Code:
    """Read what Triton's compiler made, for NVIDIA or AMD."""
    if "cubin" in kernel.asm:
        return _nvidia(kernel.asm["cubin"])
    return _amd(kernel.asm["amdgcn"])


class _Line(NamedTuple):
    """A label, or an instruction with the rest of its line."""

    label: str
    operation: str = ""
    rest: str = ""


@cache
def _nvidia(cubin: bytes) -> Code:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = _run("cuobjdump", "-res-usage", file.name)
        text = _run("nvdisasm", "-c", file.name)
    lines = list(_sass(text))
    operations = [line.operation for line in lines if not line.label]
    found = re.search(r"REG:(\d+)", usage)
    if found is None or not operations:
        raise ValueError(f"expected the resources and the code of a kernel, got {usage!r} and {text[:200]!r}")
    spills = sum(operation.startswith(("LDL", "STL")) for operation in operations)
    return Code(int(found[1]), spills, len(operations), _nvidia_loops(lines))


def _run(tool: str, *arguments: str) -> str:
    """Run a tool that Triton brings; nvdisasm warns of the format on stderr and goes on."""
    done = subprocess.run([TOOLS / tool, *arguments], capture_output=True, text=True, check=True)
    return done.stdout


def _sass(text: str) -> Iterable[_Line]:
    for line in text.splitlines():
        if label := re.match(r"\s*(\.L_\w+):", line):
            yield _Line(label[1])
        elif code := re.match(r"\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z]\S*)(.*?);", line):
            yield _Line("", code[1], code[2])


def _nvidia_loops(lines: Sequence[_Line]) -> tuple[Loop, ...]:
    """Find branches back to a label, and keep those around no other one."""
    labels: dict[str, int] = {}
    operations: list[str] = []
    ends: dict[int, int] = {}
    for line in lines:
        if line.label:
            labels[line.label] = len(operations)
            continue
        operations.append(line.operation)
        target = re.search(r"\.L\w+", line.rest)
        if line.operation.startswith("BRA") and target and target[0] in labels:
            start = labels[target[0]]
            if len(operations) - start > 1:  # a branch to itself ends the code of NVIDIA
                ends[start] = len(operations)  # the last branch to a label ends its loop
    spans = list(ends.items())
    inner = [a for a in spans if not any(a != b and a[0] <= b[0] and b[1] <= a[1] for b in spans)]
    return tuple(
        Loop(end - start, sum(operation.startswith("MUFU") for operation in operations[start:end]))
        for start, end in sorted(inner)
    )


@cache
def _amd(text: str) -> Code:
    """Read an assembler file, whose notes at the end have the registers."""
    operations = re.findall(r"^\t([a-z]+_\w+)", text, re.MULTILINE)
    found = re.search(r"\.vgpr_count:\s+(\d+)", text)
    if found is None or not operations:
        raise ValueError(f"expected the resources and the code of a kernel, got {text[:200]!r}")
    spills = sum(operation.startswith("scratch_") for operation in operations)
    return Code(int(found[1]), spills, len(operations), _amd_loops(text))


def _amd_loops(text: str) -> tuple[Loop, ...]:
    """Add up the blocks of each loop, wherever they are placed: a comment of each says where it belongs."""
    loops: dict[str, list[str]] = {}
    innermost: list[str] = []
    # Each block begins with a label, or with a comment in place of one, and more comments.
    for block in re.split(r"^(?=\.LBB\w+:|; %bb\.)", text, flags=re.MULTILINE):
        head = re.match(r".*(?:\n\s+;.*)*", block)
        comment = head[0] if head else ""
        if "Inner Loop Header" in comment:
            name = comment.partition(":")[0].removeprefix(".L")
            innermost.append(name)
        elif inside := re.search(r"in Loop: Header=(\w+)", comment):
            name = inside[1]
        else:
            continue
        loops.setdefault(name, []).extend(re.findall(r"^\t([a-z]+_\w+)", block, re.MULTILINE))
    special = ("v_exp_", "v_log_", "v_rcp_")
    return tuple(
        Loop(len(loops[name]), sum(operation.startswith(special) for operation in loops[name]))
        for name in innermost
    )
