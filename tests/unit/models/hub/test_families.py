"""The table of families in docs/hub.md is what a check of each family gives."""

import families
import pytest
import transformers

VERSION = families.PAGE.read_text().partition(families.BEGIN)[2].partition(":")[0]
pytestmark = pytest.mark.skipif(
    f"transformers {transformers.__version__}" != VERSION, reason="the table is of another version of transformers"
)


def test_every_family_is_in_the_table() -> None:
    assert list(families.committed()) == list(families.FAMILIES)


@pytest.mark.parametrize("family", ["llama", "mamba", "mamba2", "qwen3_next", "bert", "llama4_text"])
def test_a_row_is_that_of_a_check(family: str) -> None:
    assert families.check(family).line() == families.committed()[family]


@pytest.mark.slow
@pytest.mark.parametrize("family", families.FAMILIES)
def test_each_row_is_that_of_a_check(family: str) -> None:
    assert families.check(family).line() == families.committed()[family]
