from __future__ import annotations

import argparse
from pathlib import Path

from examples.studies import convergence, gap_map, propositions, stability, structural_zeros

STUDIES = {
    "convergence": convergence.main,
    "gap-map": gap_map.main,
    "propositions": propositions.main,
    "stability": stability.main,
    "structural-zeros": structural_zeros.main,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.studies", description=__doc__)
    parser.add_argument("names", nargs="*", default=list(STUDIES), metavar="NAME", help=", ".join(STUDIES))
    parser.add_argument("--figures", type=Path, default=Path("docs/figures"), help="where pictures go")
    args = parser.parse_args()
    unknown = [name for name in args.names if name not in STUDIES]
    if unknown:
        parser.error(f"unknown study {unknown[0]!r}; there are: {', '.join(STUDIES)}")
    args.figures.mkdir(parents=True, exist_ok=True)
    for name in args.names:
        print(f"\n## {name}\n")
        STUDIES[name](args.figures)


if __name__ == "__main__":
    main()
