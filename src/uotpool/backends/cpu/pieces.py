"""Long batches go to the library in pieces of sets, so that Ctrl-C is answered between two of them.

Python looks at signals when a native call is over. The results are those of one call, to the bit: see
csrc/uotpool.h.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from uotpool.backends.cpu import library

# Work is counted in entries times (modules + 1). The slowest code (float64, no AVX) takes 40 ns for each on the
# machine of docs/kernels.md: there the first piece, before anything is known, is a third of a second at most.
FIRST_WORK = 2**23
SECONDS = 0.25  # that later pieces are made to take
GROWTH = 16  # from one piece to the next, at most: the clock of a short one says little


def is_short(work: int, count: int) -> bool:
    """Say whether `count` sets of so much work in all are for one call. A set alone is never cut."""
    return work <= FIRST_WORK or count < 2


def run(count: int, part: Callable[[int, int], int], reach: Callable[[int, int], tuple[int, int]]) -> None:
    """Solve `count` sets in pieces, and raise what the library says.

    Args:
        count: of sets (or images).
        part: the call for the sets begin .. end - 1, asked for in order; its status.
        reach: from begin and an amount of work to the end of the sets that it is enough for, one at least, and
            their work.
    """
    begin, wanted = 0, FIRST_WORK
    while begin < count:
        end, doing = reach(begin, wanted)
        start = time.perf_counter()
        library.check(part(begin, end))
        took = max(time.perf_counter() - start, 1e-6)
        # Not below a share of the first: a piece of empty sets is no work and says nothing.
        wanted = max(min(int(doing * SECONDS / took), GROWTH * wanted), FIRST_WORK // GROWTH)
        begin = end


def equal_reach(each: int, count: int) -> Callable[[int, int], tuple[int, int]]:
    """Return the `reach` of sets that are the same work each."""

    def reach(begin: int, wanted: int) -> tuple[int, int]:
        sets = min(max(wanted // max(each, 1), 1), count - begin)
        return begin + sets, sets * each

    return reach
