"""What the tests of the models share."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def small_tensors(one_thread):
    """On one thread."""
