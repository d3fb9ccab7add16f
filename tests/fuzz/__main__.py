"""The command of the package's docstring."""

from __future__ import annotations

import sys
from typing import Any

import uotpool
from tests import tolerances as tol
from tests.fuzz import converged, large, sets
from tests.fuzz.found import Found


def family(seed: int) -> Any:
    """Which problems this seed draws from: most are small sets, one in a hundred is a large one."""
    if seed % 100 == 8:
        return large
    return converged if seed % 10 == 6 else sets


def main(count: int, first: int = 0) -> int:
    failed, total = 0, Found()
    with uotpool.check(False):  # priors that underflow to 0 are among what is drawn
        for seed in range(first, first + count):
            case = family(seed).draw(seed)
            found = family(seed).check(case)
            total.compared += found.compared
            total.skipped += found.skipped
            if found.wrong:
                failed += 1
                print(f"seed {seed}: {case.describe()}: {found.wrong}", flush=True)
    print(
        f"{count} cases from seed {first}, {failed} failed; {total.compared} results compared, "
        f"{total.skipped} skipped, where rounding may be more than {tol.FUZZ_CAP:g} of a result's scale"
    )
    return failed


if __name__ == "__main__":
    sys.exit(min(1, main(*map(int, sys.argv[1:]))))
