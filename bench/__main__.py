from __future__ import annotations

import argparse
import gc
import time
from pathlib import Path

import torch
from rich.console import Console
from uotpool_experiments import figures

import bench
from bench import machine, measurements
from bench.report import print_rows, print_targets, write_csv
from bench.rows import Comparison
from bench.session import Session


def make_parser() -> argparse.ArgumentParser:
    width = max(map(len, measurements.NAMES)) + 2
    names = "\n".join(f"  {name:<{width}}{measurements.about(name)}" for name in measurements.NAMES)
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=(bench.__doc__ or "").partition("\n")[0],
        epilog=f"measurements:\n{names}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="what to measure, of those below (default: all but " + ", ".join(measurements.NAMED) + ")",
    )
    parser.add_argument(
        "--threads", type=int, nargs="+", default=None, metavar="N", help="default: 1 2 (with --quick, 1)"
    )
    parser.add_argument("--repeats", type=int, default=None, help="samples of each candidate (default: 7)")
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes, 2 repeats: only shows that all of it runs"
    )
    parser.add_argument(
        "--compile",
        choices=("none", "some", "all"),
        default=None,
        help="sizes at which torch.compile is timed, some 25 s for each solver and size: "
        "some = the first two with the first number of threads (default), none (default with --quick), all",
    )
    parser.add_argument(
        "--seeds",
        type=int,
        nargs="+",
        default=None,
        metavar="SEED",
        help="of witnesses (default: 0 1 2 3 4; with --quick, 0)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=None,
        help="where CSV files, pictures and the runs of witnesses go (default: out/bench)",
    )
    parser.add_argument(
        "--renew",
        action="store_true",
        help="write the pictures and the table of docs/ instead, and the files in results/ behind them",
    )
    return parser


def make_session(parser: argparse.ArgumentParser, args: argparse.Namespace) -> Session:
    unknown = [name for name in args.names if name not in measurements.NAMES]
    if unknown:
        parser.error(f"unknown measurement {unknown[0]!r}; there are: {', '.join(measurements.NAMES)}")
    threads = args.threads or ([1] if args.quick else [1, 2])
    if min(threads) < 1 or (args.repeats is not None and args.repeats < 1):
        parser.error("--threads and --repeats: expected numbers >= 1")
    if args.renew and (args.quick or args.out is not None):
        parser.error("--renew: expected neither --quick, whose figures mean nothing, nor --out")
    return Session(
        threads=tuple(threads),
        repeats=args.repeats or (2 if args.quick else 7),
        quick=args.quick,
        compile=args.compile or ("none" if args.quick else "some"),
        out=args.out or Path("out/bench"),
        renew=args.renew,
        seeds=tuple(args.seeds or (range(1) if args.quick else range(5))),
    )


def csv_path(session: Session, name: str) -> Path:
    renewed = session.renew and name in measurements.FIGURES
    return (machine.ROOT / "results/bench" if renewed else session.out) / f"{name}.csv"


def main() -> None:
    parser = make_parser()
    args = parser.parse_args()
    session = make_session(parser, args)
    console = Console()
    if not console.is_terminal:
        console = Console(width=180)  # a file can be scrolled sideways
    facts = machine.facts(session.repeats)
    console.print(
        ", ".join(f"{name} {value}" for name, value in facts.items()), highlight=False, soft_wrap=True
    )
    if args.quick:
        console.print("quick: sizes so small that no figure below means anything", style="bold")

    # What is there now stays: the collector, run before each measurement, need not look at it again.
    gc.collect()
    gc.freeze()
    comparisons: list[Comparison] = []
    for name in args.names or measurements.default():
        start = time.perf_counter()
        torch.manual_seed(0)
        measurement = measurements.load(name)
        rows = measurement.measure(session)
        path = csv_path(session, name)
        write_csv(path, rows, facts)
        if name in measurements.FIGURES:
            figures.draw(measurements.FIGURES[name], session.figures, source=path, formats=("png",))
        print_rows(console, measurement.summary(rows))
        comparisons += [row for row in rows if isinstance(row, Comparison)]
        took = time.perf_counter() - start
        console.print(f"{path} ({len(rows)} rows, {took:.0f} s)\n", highlight=False)
    if comparisons and not args.quick:
        print_targets(console, comparisons)


if __name__ == "__main__":
    main()
