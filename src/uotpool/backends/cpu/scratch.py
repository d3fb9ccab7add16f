"""Memory that the fused CPU kernels keep from one call to the next, and how to get it back.

Fresh pages of a large block can cost as much time as the work that is done in them, so blocks of 256 KiB and
more are kept, up to `limit()` bytes in the whole process, 128 MiB until another limit is set. Where the kernels
are not installed nothing is kept, and every function returns 0.
"""

from __future__ import annotations

from uotpool.backends.cpu import library


def free() -> int:
    """Give what is kept and not in use back to the system, and return how many bytes that was."""
    native = library.load()
    return 0 if native is None else int(native.uotpool_free_scratch())


def kept() -> int:
    """Return how many bytes are kept and not in use."""
    native = library.load()
    return 0 if native is None else int(native.uotpool_kept_scratch())


def limit(most: int | None = None) -> int:
    """Set how many bytes may be kept in all.

    Args:
        most: a new limit; 0 keeps nothing. What is kept above it is freed.

    Raises:
        ValueError: `most` is negative or does not fit 64 bits.
    """
    if most is not None and not 0 <= most < 2**63:
        raise ValueError(f"most: expected a number of bytes, 0 or more, got {most}")
    native = library.load()
    return 0 if native is None else int(native.uotpool_limit_scratch(-1 if most is None else most))
