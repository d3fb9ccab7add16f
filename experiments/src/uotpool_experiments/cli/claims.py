"""The command `uotpool claims`."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from uotpool_experiments.tables import FORMATS


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("claims", help="print what the committed runs say of each claim of the paper")
    parser.add_argument("--format", choices=FORMATS, default="terminal", help="default: %(default)s")
    parser.set_defaults(command_function=_claims)


def _claims(args: argparse.Namespace) -> int:
    from uotpool_experiments.tables import formats, manifest
    from uotpool_experiments.tables.claims import claims_table

    sys.stdout.write(formats.render(claims_table(manifest.committed()), args.format))
    return 0
