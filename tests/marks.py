"""Cases that `make test` leaves to `make test-all`, because it has another one of their kind."""

import pytest


def thorough_unless(quick, *values, **named):
    """Return a case of pytest.mark.parametrize. quick: whether `make test` runs it too."""
    return pytest.param(*values, marks=() if quick else pytest.mark.thorough, **named)
