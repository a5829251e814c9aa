"""The table of tokens: its text columns against plain loops, and files that do not fit together."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import argap
from argap.errors import ArgapError, FormatError, MismatchError
from argap.files.atomic import read_json, write_json
from argap.files.checksums import write_checksums
from argap.text.words import PieceBytes, seen_earlier
from argap.tokens.table import COLUMNS
from tests.conftest import copied


def plain_words(texts: list[str]) -> list[tuple[str | None, bool, bool]]:
    """Word, word_start and word_repeated of each token of a window, character by character."""
    characters = [(k, c) for k, text in enumerate(texts) for c in text]
    words, owner = [], {}
    inside = False
    for k, c in characters:
        if c in " \t\n\v\f\r":
            inside = False
            continue
        if not inside:
            words.append("")
        if k not in owner:
            owner[k] = (len(words) - 1, not inside)
        words[-1] += c
        inside = True
    return [
        (None, False, False) if k not in owner else (words[w], start, words[w] in words[:w])
        for k, (w, start) in ((k, owner.get(k, (0, False))) for k in range(len(texts)))
    ]


def test_the_table_has_all_columns_and_scored_tokens(result, token_result):
    table = result.tokens()
    assert tuple(table.column_names) == (*COLUMNS, "rank")
    assert len(table) == result.evaluation.scored
    assert [field.name for field in table.schema.field("nll").type] == ["ref", "m-1", "m2"]
    run = pa.concat_tables([pq.read_table(p) for p in sorted((token_result / "m2" / "tokens").iterdir())])
    scored = run.filter(pa.array(run["pos"].to_numpy() > 0))
    for name in ("window", "pos", "token"):
        assert table[name].to_pylist() == scored[name].to_pylist()
    nll = [row["m2"] for row in table["nll"].to_pylist()]
    assert nll == [-p for p in scored["logprob"].to_pylist()]
    assert [row["m2"] for row in table["top1"].to_pylist()] == scored["top1"].to_pylist()
    assert [row["m2"] for row in table["rank"].to_pylist()] == scored["rank"].to_pylist()
    sources = result.token_table.record.sources
    assert table["source"].to_pylist() == [sources[d] for d in table["document"].to_pylist()]


def test_words_agree_with_a_loop(result, token_result, tokenizer):
    run = pa.concat_tables([pq.read_table(p) for p in sorted((token_result / "ref" / "tokens").iterdir())])
    window, token = run["window"].to_numpy(), run["token"].to_numpy()
    got = result.tokens(columns=["window", "pos", "piece", "previous", "word", "word_start", "word_repeated"])
    rows = {(row["window"], row["pos"]): row for row in got.to_pylist()}
    checked = 0
    for w in np.unique(window):
        ids = token[window == w]
        texts = [tokenizer.decode([i]) for i in ids]
        if any("�" in text for text in texts):
            continue
        for pos, (word, start, repeated) in enumerate(plain_words(texts)):
            if pos == 0:
                continue
            row = rows[w, pos]
            assert (row["word"], row["word_start"], row["word_repeated"]) == (word, start, repeated)
            assert (row["piece"], row["previous"]) == (texts[pos], texts[pos - 1])
            checked += 1
    assert checked > 1000


def test_a_character_in_pieces_is_whole_in_its_word(result):
    words = result.tokens("contains(piece, chr(65533))", columns=["word"])["word"].to_pylist()
    assert any("言葉" in word for word in words)


def test_a_word_cut_inside_a_character_by_the_windows_end():
    euro = "€".encode()
    pieces = PieceBytes([b"a ", euro[:1], euro[1:], b" b"])
    words = pieces.words(np.array([0, 1, 2, 3]), np.array([0, 0, 1, 1], dtype=np.int32))
    assert words.texts.to_pylist()[0] == "a"
    assert words.texts.to_pylist()[-1] == "b"
    assert words.number.tolist() == [0, 1, 2, 3]
    assert set("".join(words.texts.to_pylist()[1:3])) == {"�"}
    same = pieces.words(np.array([0, 1, 2, 3]), np.zeros(4, dtype=np.int32))
    assert same.texts.to_pylist() == ["a", "€", "b"]
    assert not seen_earlier(same).any()


def test_selected_columns_models_and_rows(result):
    table = result.tokens("repeated", models=["m-1"], columns=["piece", "nll"], limit=7)
    assert table.column_names == ["piece", "nll"]
    assert len(table) == 7
    assert [field.name for field in table.schema.field("nll").type] == ["m-1"]
    other = result.tokens("nll.ref > 1", models=["m2"], columns=["top1"], limit=3)
    assert [field.name for field in other.schema.field("top1").type] == ["m2"]
    by_function = result.tokens(lambda batch: batch["repeated"], columns=["pos"])
    assert len(by_function) == len(result.tokens("repeated", columns=["pos"]))
    with pytest.raises(ArgapError, match="`models` nobody: unknown; known are ref, m-1, m2"):
        result.tokens(models=["nobody"])
    with pytest.raises(ArgapError, match="`columns` x: unknown; known are window"):
        result.tokens(columns=["x"])


def test_rows_that_are_other_tokens(token_result, tmp_path):
    out = copied(token_result, tmp_path / "out")
    path = out / "labels" / "labels.parquet"
    (out / "labels" / "checksums.json").unlink()  # read unchecked
    table = pq.read_table(path)
    pq.write_table(table.take([1, 0, *range(2, len(table))]), path)
    with pytest.raises(FormatError, match="labels: its rows are other tokens"):
        argap.open_result(out).tokens()
    pq.write_table(table.slice(0, len(table) - 1), path)
    with pytest.raises(FormatError, match="labels: fewer rows than the runs"):
        argap.open_result(out).tokens()
    pq.write_table(pa.concat_tables([table, table.slice(0, 1)]), path)
    with pytest.raises(FormatError, match="labels: more rows than the runs"):
        argap.open_result(out).gap({"a": "repeated"})
    gap = read_json(out / "gap.json")
    write_json(out / "gap.json", gap | {"evaluation": gap["evaluation"] | {"fingerprint": "0" * 64}})
    with pytest.raises(MismatchError, match=r"labels holds evaluation set \w{12}, .*out 0{12}; run `argap score`"):
        argap.open_result(out).tokens()


@pytest.mark.parametrize("aligned", [0, 1])
def test_parts_of_other_sizes_than_those_of_the_reference(result, token_result, tmp_path, aligned):
    """``aligned``: parts of m2 that keep their rows; the others are cut anew, without regard to windows."""
    out = copied(token_result, tmp_path / "out")
    kept, recut = np.split(np.array(sorted((out / "m2" / "tokens").iterdir())), [aligned])
    rows = pa.concat_tables([pq.read_table(path) for path in recut])
    for path in recut:
        path.unlink()
    cut = [out / "m2" / "tokens" / f"part-{k:05d}.parquet" for k in range(aligned, aligned + 3)]
    for path, start, end in zip(cut, [0, 7, 7], [7, 7, len(rows)], strict=True):
        pq.write_table(rows.slice(start, end - start), path)
    write_checksums(out / "m2", [*kept, *cut])
    slices = {"hard": "nll.m2 > 3", "top": "top1.m2 = token"}
    # Sums over other portions of the tokens, which round otherwise.
    pd.testing.assert_frame_equal(argap.open_result(out).gap(slices), result.gap(slices), rtol=1e-12)
    pq.write_table(rows.slice(7, len(rows) - 8), cut[-1])
    write_checksums(out / "m2", [*kept, *cut])
    with pytest.raises(FormatError, match="m2: fewer rows than the runs"):
        argap.open_result(out).gap(slices)


def test_a_broken_part_is_named(token_result, tmp_path):
    out = copied(token_result, tmp_path / "out")
    part = min((out / "m2" / "tokens").iterdir())
    part.write_bytes(part.read_bytes()[:100])
    with pytest.raises(FormatError, match=r"part-00000\.parquet: damaged between bytes"):
        argap.open_result(out).gap({"a": "repeated"})
    (out / "m2" / "checksums.json").unlink()
    with pytest.raises(FormatError, match=r"part-00000\.parquet: not a complete Parquet file"):
        argap.open_result(out).gap({"a": "repeated"})


def test_a_checksum_that_is_no_text_is_refused(token_result, tmp_path):
    out = copied(token_result, tmp_path / "out")
    recorded = read_json(out / "labels" / "checksums.json")
    recorded["files"]["labels.parquet"] = []
    write_json(out / "labels" / "checksums.json", recorded)
    with pytest.raises(FormatError, match=r"checksums.json: Expected `str`, got `array`.*remove the file"):
        argap.open_result(out).gap({"every": "true"})


def test_labels_without_windows_are_refused(token_result, tmp_path):
    out = copied(token_result, tmp_path / "out")
    (out / "labels" / "checksums.json").unlink()
    rows = pq.read_table(out / "labels" / "labels.parquet")
    nulls = pa.nulls(len(rows), rows.schema.field("window").type)
    pq.write_table(
        rows.set_column(rows.column_names.index("window"), "window", nulls), out / "labels" / "labels.parquet"
    )
    with pytest.raises(FormatError, match=r"labels.parquet: window is null in \d+ rows"):
        argap.open_result(out).gap({"every": "true"})
