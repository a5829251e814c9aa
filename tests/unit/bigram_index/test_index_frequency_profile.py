"""The frequency profile of a text."""

import numpy as np
import pytest

from argap.bigram_index import frequency_profile as profile
from argap.bigram_index.frequency_profile import FrequencyBin, frequency_profile
from argap.errors import ArgapError
from tests.builders.index import build


@pytest.fixture
def index(tmp_path):
    # (0,1) 12 times, (1,0) 11 times, (2,3) 10 times, (4,5) once.
    documents = [np.array([0, 1] * 12), *[np.array([2, 3])] * 10, np.array([4, 5])]
    return build(tmp_path / "index", documents, vocab_size=6)


@pytest.mark.parametrize("piece", [1, 2**20])
def test_profile_matches_a_worked_example(piece, index, monkeypatch):
    monkeypatch.setattr(profile, "PIECE", piece)
    text = [np.array([0, 1, 0]), np.array([2, 3]), np.array([4, 5, 5]), np.array([1]), np.array([2, 3])]
    # 12, 11 | 10 | 1, 0 | | 10: of six bigrams one unseen, one once, two 2 to 10 times, two 11 to 100 times.
    assert frequency_profile(index, text) == [
        FrequencyBin(0, 0, 1, 1 / 6),
        FrequencyBin(1, 1, 1, 1 / 6),
        FrequencyBin(2, 10, 2, 2 / 6),
        FrequencyBin(11, 100, 2, 2 / 6),
    ]


def test_bins_are_of_exposures(tmp_path):
    # Counts 12, 1 and 0, read 10 times: 120, 10 and 0 exposures; read every other time: 6, 0.5 and 0, rounded to even.
    documents, text = [np.array([0, 1] * 12), np.array([4, 5])], [np.array([0, 1]), np.array([4, 5]), np.array([5, 0])]
    for passes, expected in ((10, {0: 1, 2: 1, 101: 1}), (0.5, {0: 2, 2: 1})):
        built = build(tmp_path / f"{passes}", documents, vocab_size=6, passes=passes)
        found = frequency_profile(built, text)
        assert {each.low: each.bigrams for each in found if each.bigrams} == expected


def test_text_without_bigrams_is_refused(index):
    with pytest.raises(ArgapError, match="no bigram"):
        frequency_profile(index, [np.array([1]), np.array([2])])
