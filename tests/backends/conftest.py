from __future__ import annotations

import pytest

from uotpool.backends.cpu import library


@pytest.fixture(params=library.ISAS)
def isa(request):
    """Each instruction set in turn; the one before is in use again afterwards."""
    if request.param not in library.usable_isas():
        pytest.skip(f"this CPU or build has no {request.param}, only {', '.join(library.usable_isas())}")
    before = library.isa()
    library.set_isa(request.param)
    yield request.param
    library.set_isa(before)
