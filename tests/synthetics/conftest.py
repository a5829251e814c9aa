"""What the tests of the synthetic tasks share."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def small_tensors(one_thread):
    """On one thread."""
