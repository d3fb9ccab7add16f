from __future__ import annotations

import argparse
import gc
import time
from pathlib import Path

import torch
from rich.console import Console

import bench
from bench import (
    deploy,
    graph,
    growth,
    latency,
    memory,
    mil,
    pools,
    pot,
    ragged,
    speed,
    svm,
    swap,
    windows,
    zoo,
)
from bench.report import Row, machine_facts, print_summary, print_tables, write_csv
from bench.session import Session

BENCHMARKS = {
    "speed": speed.run,
    "pools": pools.run,
    "pot": pot.run,
    "memory": memory.run,
    "ragged": ragged.run,
    "latency": latency.run,
    "growth": growth.run,
    "zoo": zoo.run,
    "mil": mil.run,
    "graph": graph.run,
    "svm": svm.run,
    "windows": windows.run,
    "swap": swap.run,
    "deploy": deploy.run,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=bench.__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(BENCHMARKS)} (default: all)")
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
    parser.add_argument("--out", type=Path, default=Path("out/bench"), help="where the CSV files go")
    parser.add_argument(
        "--figures",
        type=Path,
        default=None,
        help="where pictures go (default: docs/figures; with --quick, OUT)",
    )
    args = parser.parse_args()
    unknown = [name for name in args.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"unknown benchmark {unknown[0]!r}; there are: {', '.join(BENCHMARKS)}")
    threads = args.threads or ([1] if args.quick else [1, 2])
    if min(threads) < 1 or (args.repeats is not None and args.repeats < 1):
        parser.error("--threads and --repeats: expected numbers >= 1")

    session = Session(
        threads=tuple(threads),
        repeats=args.repeats or (2 if args.quick else 7),
        quick=args.quick,
        compile=args.compile or ("none" if args.quick else "some"),
        figures=args.figures or (args.out if args.quick else Path("docs/figures")),
    )
    console = Console()
    if not console.is_terminal:
        console = Console(width=180)  # a file can be scrolled sideways
    facts = machine_facts(session.repeats)
    console.print(
        ", ".join(f"{name} {value}" for name, value in facts.items()), highlight=False, soft_wrap=True
    )
    if args.quick:
        console.print("quick: sizes so small that no figure below means anything", style="bold")

    # What is there now stays: the collector, run before each measurement, need not look at it again.
    gc.collect()
    gc.freeze()
    torch.manual_seed(0)
    everything: list[Row] = []
    for name in args.names or BENCHMARKS:
        start = time.perf_counter()
        rows = BENCHMARKS[name](session)
        everything += rows
        path = args.out / f"{name}.csv"
        write_csv(path, rows, facts)
        print_tables(console, rows)
        took = time.perf_counter() - start
        console.print(f"{path} ({len(rows)} rows, {took:.0f} s)\n", highlight=False)
    if not args.quick:
        print_summary(console, everything)


if __name__ == "__main__":
    main()
