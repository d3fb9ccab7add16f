"""Hostile calls of the operators and of the C interface, in a process that may die of them.

    python -m tests.backends.hostile KIND CALLS [KIND CALLS] SEED

KIND is "operators" or "c". It prints how many calls were answered and how many refused, as JSON. What must not
happen ends the process: a crash, an error that is no refusal, or a result that nobody has filled in.

Most calls start from a good one, in which a few arguments are changed, so that they come past the first check.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import random
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.backends.raw import NATIVE, Raw
from uotpool.backends.cpu import library
from uotpool.backends.ops import FIXED, SLOTS, Arguments

# AttributeError: torch lets None pass for a tensor, and Python says that it has no shape.
REFUSALS = (AttributeError, IndexError, MemoryError, RuntimeError, TypeError, ValueError)
SIZES = (-(2**63), -(2**40), -1, 0, 1, 2, 3, 5, 2**20 + 1, 2**31, 2**40, 2**62, 2**63 - 1)


# ---------------------------------------------------------------------------------------------------------
# Operators


def floats(rng: random.Random, *shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(rng.getrandbits(32)))


def spoilt(rng: random.Random, t: Tensor) -> Tensor:
    """Another tensor than was asked for: of a wrong size, dtype, device, layout, or with odd strides.

    Values of a floating tensor stay >= 0, since a weight below is a NaN in the result.
    """
    flat = t.flatten()
    changes: list[Callable[[], Tensor]] = [
        lambda: flat[:-1],
        lambda: flat[:0],
        lambda: t[None],
        lambda: t.new_zeros(()),
        lambda: torch.cat([flat, flat]),
        lambda: t.to(rng.choice([torch.int32, torch.int64, torch.float16, torch.bool, torch.complex64])),
        lambda: t.to(torch.float64),
        lambda: t.to("meta"),
        lambda: t.float().to_sparse(),
        lambda: torch.stack([t, t], -1)[..., 1],
        lambda: t.flip(0).expand(t.shape) if t.dim() else t,
        lambda: flat[:1].expand(t.numel()).reshape(t.shape) if t.numel() else t,
        lambda: t.transpose(0, -1) if t.dim() else t,
        lambda: torch._neg_view(-t.float()),
        t.conj,
        lambda: torch.full_like(t, rng.choice([-1, 7, 2**40])) if t.dtype == torch.int64 else t + 1,
        lambda: t.float().requires_grad_(),
    ]
    return rng.choice(changes)()


def grouping(rng: random.Random) -> tuple[int, int, int]:
    """Sets, rows of each, features."""
    return rng.choice([0, 1, 2, 3, 9]), rng.choice([0, 1, 2, 5, 40]), rng.choice([1, 2, 3, 17])


def good_call(rng: random.Random) -> Raw:
    """Draw a good call of the C interface, with arrays of exactly the size that it says."""
    (B, N, D), K = grouping(rng), rng.choice([1, 2, 5])
    grouped = rng.random() < 0.5
    forms = [rng.choice(["identity", "exp", "softplus", "fixed"]) for _ in range(4)]
    raw = Raw(
        rng.choice(list(library.SOLVERS)),
        rng.choice([torch.float32, torch.float64]),
        sizes=[N] * B if grouped else None,
        **{"B": B, "N": N, "D": D, "K": K},
        plan=rng.random() < 0.5,
        rows=grouped and rng.random() < 0.5,
        p0=rng.choice(["each", "shared", "uniform"]),
        q0=rng.random() < 0.5,
        scale=rng.choice([0, 1, D]),
        transforms=(*forms, rng.choice(["identity", "linear", "fixed"])),
        seed=rng.getrandbits(32),
        threads=rng.choice([1, 2]),
    )
    for slot in SLOTS:
        if raw.sizes[f"length_{slot}"] and rng.random() < 0.5:  # one number for all steps
            raw.sizes[f"length_{slot}"] = 1
            for name in (f"coefficient_{slot}", f"dcoefficient_{slot}"):
                t = raw.arrays[name]
                raw.arrays[name] = None if t is None else t[:1]
    for t in raw.outputs().values():
        t.fill_(1.0)
    return raw


def solve_arguments(rng: random.Random) -> list[Any]:
    """The same call for the operators."""
    raw = good_call(rng)
    n, a = raw.sizes, raw.arrays
    codes, lengths = ([n[f"{kind}_{slot}"] for slot in SLOTS] for kind in ("transform", "length"))
    own = [(a[f"coefficient_{slot}"], code) for slot, code in zip(SLOTS, codes, strict=True)]
    tensors = [t for t, code in own if code > FIXED]
    fixed = [x for t, code in own if t is not None and code == FIXED for x in t.tolist()]
    sets = [a["X"], a["ptr"], a["rows"], None, n["N"], a["log_p0"], a["log_q0"]]
    solver = list(library.SOLVERS)[n["solver"]]
    return ["cpu", *sets, tensors, codes, fixed, lengths, n["B"], solver, n["K"], bool(n["head"])]


def operator_call(rng: random.Random) -> tuple[str, list[Any]]:
    """A good call of one of the operators."""
    name = rng.choice(["group", "solve", "solve_backward", "sum", "max", "spread"])
    B, N, D = grouping(rng)
    index = torch.arange(B).repeat_interleave(N)
    if name == "group":
        present = rng.choice([None, floats(rng, B * N) < 0.5])
        return name, [floats(rng, B * N, D), rng.choice([None, index]), present, B, N]
    if name in ("sum", "max"):
        return f"segment_{name}", [floats(rng, B * N, D), index, B]
    if name == "spread":
        return "segment_spread", [floats(rng, B, D), index]
    arguments = solve_arguments(rng)
    if name == "solve":
        return name, arguments
    call = Arguments(*arguments)
    dout = floats(rng, *call.output_shape()).to(call.X.dtype)
    return name, [dout, [], *arguments, [rng.random() < 0.7 for _ in call.differentiable()]]


def changed(rng: random.Random, value: Any) -> Any:
    if isinstance(value, Tensor):
        return rng.choice([None, spoilt(rng, value), spoilt(rng, value)])
    if value is None:
        return spoilt(rng, floats(rng, 3))
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice(SIZES)
    if isinstance(value, str):
        return rng.choice([*library.SOLVERS, "", "sinkhorn\0", "cpu", "triton"])
    if isinstance(value, list) and value and isinstance(value[0], Tensor):
        return rng.choice([value[:-1], [*value, value[0]], [changed(rng, t) for t in value]])
    if isinstance(value, list) and value and isinstance(value[0], float):
        return rng.choice([value[:-1], [*value, 1.0], [rng.choice([-1.0, 1e300]) for _ in value]])
    return rng.choice([value[:-1], [*value, 1], [rng.choice(SIZES) for _ in value]])


def filled(name: str, result: Any) -> None:
    """Memory that torch has not been told a value of holds NaN, or the largest integer, in this process."""
    for t in result if isinstance(result, tuple) else (result,):
        if not t.is_meta and t.numel():
            poison = t.isnan() if t.is_floating_point() else t == torch.iinfo(t.dtype).max
            assert not bool(poison.any()), f"{name} returned what it has not filled in"


def operators(calls: int, rng: random.Random) -> dict[str, int]:
    torch.use_deterministic_algorithms(True)  # torch fills memory that it has not been told a value of
    counts = {"answered": 0, "refused": 0}
    for _ in range(calls):
        name, arguments = operator_call(rng)
        for place in rng.sample(range(len(arguments)), min(len(arguments), rng.choice([0, 1, 1, 1, 2, 3]))):
            arguments[place] = changed(rng, arguments[place])
        if affordable(arguments):
            try:
                filled(name, getattr(torch.ops.uotpool, name)(*arguments))
                counts["answered"] += 1
            except REFUSALS:
                counts["refused"] += 1
    return counts


def affordable(arguments: list[Any]) -> bool:
    """Not where the call is a sound one that asks for gigabytes, as torch.empty would be."""
    sizes = [n for a in arguments for n in (a if isinstance(a, list) else [a]) if type(n) is int]
    return not any(2**20 < n <= 2**33 for n in sizes)


# ---------------------------------------------------------------------------------------------------------
# C

PAGE = mmap.PAGESIZE
LIBC = ctypes.CDLL(None, use_errno=True)


class Fenced:
    """Memory that ends where a page begins which nobody may touch: to read or write behind it is a crash."""

    def __init__(self, size: int) -> None:
        pages = -(-size // PAGE)
        self._map = mmap.mmap(-1, (pages + 1) * PAGE)
        self._start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        if LIBC.mprotect(ctypes.c_void_p(self._start + pages * PAGE), PAGE, 0) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")
        self.address = self._start + pages * PAGE - size

    def fill(self, t: Tensor) -> int:
        source = t.contiguous()  # lives until it is copied
        ctypes.memmove(self.address, source.data_ptr(), source.numel() * source.element_size())
        return self.address


def fenced(t: Tensor | None, keep: list[Fenced]) -> int | None:
    if t is None:
        return None
    keep.append(Fenced(t.numel() * t.element_size()))
    return keep[-1].fill(t)


# A change that leaves a call sound may ask for other amounts of memory than the arrays have, which C cannot
# know. So sizes are changed only to what no call may have, and ptr and rows, which C checks, in their values.
WRONG = (-(2**63), -(2**40), -1, 2**62, 2**63 - 1)
# Too large to be true for every size; 0 too, for those of which there has to be one.
AT_LEAST_1 = {"K", "D", "threads"}
NOT_READ = {"p0_shared"}  # any value but 0 is true


def spoil_call(rng: random.Random, call: library.Call) -> bool:
    """Spoil the call; return whether it is wrong now."""
    sizes = [name for name, kind in call._fields_ if kind is ctypes.c_int64 and name not in NOT_READ]
    arrays = [name for name, kind in call._fields_ if kind is ctypes.c_void_p]
    way = rng.choice(["size", "size", "null", "offset", "ptr", "rows"])
    if way == "size":
        name = rng.choice(sizes)
        setattr(call, name, rng.choice((*WRONG, 0) if name in AT_LEAST_1 else WRONG))
        return True
    if way == "null":
        name = rng.choice(arrays)
        given = getattr(call, name) is not None
        needed = given and (name.startswith("coefficient") or (name == "X" and call.M > 0))
        not_wanted = name in ("dX", "dlog_p0", "dlog_q0") or name.startswith("dcoefficient")
        setattr(call, name, None if needed or not_wanted else getattr(call, name))
        return needed
    name = {"ptr": "ptr", "rows": "rows"}.get(way, rng.choice(arrays))
    address = getattr(call, name, None)
    if not address:
        return False
    if way == "offset":
        setattr(call, name, address + rng.choice([1, 2, 3]) * rng.choice([1, -1]))
        return True
    count = call.B + 1 if way == "ptr" else call.M
    if count == 0 or (way == "rows" and call.ptr is None):
        return False
    ctypes.c_int64.from_address(address + 8 * rng.randrange(count)).value = rng.choice(WRONG)
    return True


def group_call(rng: random.Random, keep: list[Fenced]) -> tuple[list[Any], bool]:
    """Arguments of `uotpool_group`, and whether they are wrong."""
    B, N, _ = grouping(rng)
    M, wrong = B * N, False
    index = torch.arange(B).repeat_interleave(N)
    if M and rng.random() < 0.3:
        index[rng.randrange(M)] = rng.choice((*WRONG, B))
        wrong = True
    arrays = [index, rng.choice([None, floats(rng, M) < 0.5]), torch.zeros(B + 1, dtype=torch.int64), index]
    at = [fenced(t, keep) for t in arrays]
    call: list[Any] = [*at[:2], M, B, N, *at[2:]]
    if rng.random() < 0.5:
        place = rng.choice([0, 2, 3, 4, 5, 6])
        sound = call[place]
        if place in (2, 3, 4):
            call[place] = -1 if place == 4 else rng.choice(WRONG)  # an index makes any N >= 0 good
        else:
            call[place] = sound + rng.choice([1, -1, 3])
        wrong = True
    return call, wrong


def c_interface(calls: int, rng: random.Random) -> dict[str, int]:
    counts = {"answered": 0, "refused": 0}
    for _ in range(calls):
        keep: list[Fenced] = []
        if rng.random() < 0.25:
            arguments, wrong = group_call(rng, keep)
            status = NATIVE.uotpool_group(*arguments)
        else:
            raw = good_call(rng)
            call = raw.call(**{name: fenced(t, keep) for name, t in raw.arrays.items()})
            wrong = rng.random() < 0.8 and spoil_call(rng, call)
            solve = NATIVE.uotpool_backward if rng.random() < 0.5 else NATIVE.uotpool_forward
            status = solve(ctypes.byref(call))
        assert (status != library.OK) == wrong, f"status {status} where wrong is {wrong}"
        counts["refused" if status else "answered"] += 1
    return counts


if __name__ == "__main__":
    *wanted, seed = sys.argv[1:]
    for kind, number in zip(wanted[::2], wanted[1::2], strict=True):
        run = {"operators": operators, "c": c_interface}[kind]
        print(json.dumps(run(int(number), random.Random(int(seed)))))
