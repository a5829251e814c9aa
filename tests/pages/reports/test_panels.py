"""Panels of figures."""

import msgspec
import pytest

from argap.errors import FormatError
from argap.records import read_gap
from argap.reports.figures.panels import threshold_position


def test_a_threshold_within_a_bin_is_one_line(token_result):
    gap = read_gap(token_result)
    assert threshold_position(gap) > 0
    with pytest.raises(FormatError, match=r"gap\.json: threshold 1251: expected the upper end of a bin"):
        threshold_position(msgspec.structs.replace(gap, threshold=1251))
