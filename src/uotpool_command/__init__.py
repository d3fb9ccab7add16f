"""The start of the command `uotpool`, in a package of its own, as importing `uotpool` imports torch.

That takes seconds, and Ctrl-C within them would end in a traceback from whatever was being
imported.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

INTERRUPTED = 130


def main() -> None:
    """Run `uotpool.cli.main`, and answer Ctrl-C from the first moment on."""
    before = signal.signal(signal.SIGINT, _stop)
    from uotpool.cli import main as run  # noqa: PLC0415 - takes seconds

    signal.signal(signal.SIGINT, before)
    run()


def _stop(number: int, frame: FrameType | None) -> None:
    # We raise no exception: an import may catch it and go on without the module that it was importing.
    os.write(2, b"stopped\n")
    os._exit(INTERRUPTED)
