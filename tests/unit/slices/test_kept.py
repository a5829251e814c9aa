"""Columns of the source as columns of tokens: against loops over characters and bytes, and what is refused."""

import json
import math
import re
import shutil
from datetime import UTC, date, datetime
from itertools import accumulate

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import argap
from argap.corpus import open_corpus
from argap.corpus.document import TextDocument
from argap.corpus.kept import kept_of, token_spans
from argap.errors import ArgapError
from argap.evaluation.documents import TOKEN_SPANS, TOKENS, Documents
from argap.evaluation.windows import build_evaluation_set, check_spec, open_evaluation_set
from argap.metric.influence import effective_number
from argap.records import EvaluationSpec, read_gap
from argap.results.compare import compare_runs
from argap.slices.discover import discover
from argap.slices.of_tokens import score_by
from argap.tokens.labels import read_labels
from tests.conftest import assert_close, write_drawn_result
from tests.properties.test_slices import recompute

KEEP = ("language", "year", "entities", "Checked on")
TEXTS = [
    "def héllo(言葉):\n    return  'x y'  # <|endoftext|> done\n",
    "Ada Lovelace met Charles Babbage in 1833; Ada wrote notes about the engine of Charles Babbage.\n",
    "for name in names:\n    print(name, names[name], 12, 'a' + \"b\")\n",
]


def rows() -> list[dict]:
    """26 documents: words are entities, capitalised words names, digits numbers; a few have nothing."""
    made = []
    for k in range(26):
        text = TEXTS[k % 3] * (1 + k % 4)
        spans = [
            {"start": found.start(), "end": found.end(), "label": label, "by": "hand"}
            for label, pattern in (("word", r"\w+"), ("name", r"[A-Z]\w+ [A-Z]\w+"), ("number", "[0-9]"))
            for found in re.finditer(pattern, text)
        ]
        row = {"text": text, "language": ["en", "fr", "it's"][k % 3], "year": 2015 + k % 7, "entities": spans}
        if k % 5 == 4:
            del row["language"]
            row["entities"] = None
        made.append(row | {"Checked on": k / 8})
    return made


@pytest.fixture(scope="module", params=["packed", "document"])
def result(request, tmp_path_factory, tokenizer):
    place = tmp_path_factory.mktemp("kept")
    (place / "text.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows()))
    spec = EvaluationSpec(data=(str(place / "text.jsonl"),), seq_len=40, packing=request.param, keep=KEEP)
    data = open_evaluation_set(spec, tokenizer)
    return argap.open_result(write_drawn_result(place / "out", data, tokenizer, source=place / "text.jsonl"))


@pytest.fixture(scope="module")
def plain(result, tokenizer) -> pd.DataFrame:
    """Every scored token with the values of its document and its labels, from the bytes of its text."""
    made = []
    for row in rows():
        ids = tokenizer.encode([row["text"]])[0].tolist()
        ends = list(accumulate(len(tokenizer.piece_bytes[i]) for i in ids))
        assert b"".join(tokenizer.piece_bytes[i] for i in ids) == row["text"].encode()
        of_byte = [k for k, c in enumerate(row["text"]) for _ in c.encode()]  # the character that a byte is of
        values = {"language": row.get("language"), "year": row["year"], "Checked on": row["Checked on"]}
        for token, start, end in zip(ids, [0, *ends], ends, strict=False):
            characters = set(of_byte[start:end])
            labels = {
                span["label"] for span in row["entities"] or () if characters & set(range(span["start"], span["end"]))
            }
            made.append({"token": token, "entities": sorted(labels)} | values)
        if result.evaluation.packing == "packed":
            made.append({"token": tokenizer.eos, "entities": []} | values)
    frame = pd.DataFrame(made)
    labels = pd.read_parquet(result.folder / "labels" / "labels.parquet")
    document = pd.read_parquet(result.folder / "labels" / "windows.parquet")["document"].to_numpy()
    frame["pos"], frame["repeated"] = labels["pos"], labels["repeated"]
    frame["document"] = document[labels["window"]]
    for model in result.models:
        run = pd.concat([pd.read_parquet(p) for p in sorted((result.folder / model / "tokens").iterdir())])
        frame[model] = -run["logprob"].to_numpy().astype(np.float64)
        assert (run["token"].to_numpy() == frame["token"]).all()
    return frame.loc[frame["pos"] > 0].reset_index(drop=True)


def test_tokens_have_the_values_of_their_own_document_and_the_labels_of_its_spans(result, plain):
    table = result.tokens()
    assert table.column_names[-4:] == list(KEEP)
    for name in KEEP:
        expected = [None if pd.isna(v) is True else v for v in plain[name]]
        assert table[name].to_pylist() == expected, name
    assert {tuple(labels) for labels in plain["entities"]} >= {(), ("word",), ("name", "word"), ("number", "word")}


def has(frame: pd.DataFrame, label: str):
    return frame["entities"].map(lambda labels: label in labels)


CONDITIONS = {
    "french": ("language = 'fr'", lambda f: f["language"] == "fr"),
    "quoted": ("language = 'it''s' AND repeated", lambda f: (f["language"] == "it's") & f["repeated"]),
    "unknown": ("language IS NULL", lambda f: f["language"].isna()),
    "names": ("list_contains(entities, 'name')", lambda f: has(f, "name")),
    "bare": ("len(entities) = 0 AND year > 2016", lambda f: (f["entities"].map(len) == 0) & (f["year"] > 2016)),
    "checked": ('"Checked on" BETWEEN 1 AND 2', lambda f: f["Checked on"].between(1, 2)),
}


def test_conditions_on_kept_columns_agree_with_pandas(result, plain):
    table = result.gap({name: sql for name, (sql, _) in CONDITIONS.items()}).set_index(["slice", "model"])
    for name, (_, function) in CONDITIONS.items():
        mask = function(plain)
        assert 10 < mask.sum() < len(plain) - 10, name
        for model in ("m-1", "m2"):
            for key, value in recompute(plain, mask, model).items():
                assert table.loc[(name, model)][key] == pytest.approx(value, rel=1e-9, abs=1e-12), (name, model, key)


def test_a_function_of_a_batch_sees_them(result, plain):
    named = result.slices(
        {"own": lambda batch: np.array([label == ["word"] for label in batch["entities"].to_pylist()])}
    )
    assert named[-1].n == plain["entities"].map(lambda labels: labels == ["word"]).sum()


def test_the_order_of_documents_changes_nothing(tmp_path, tokenizer):
    """Of shares, NLLs and contributions; the bootstrap draws documents by their number."""
    figures = []
    for order in (np.arange(26), np.random.default_rng(3).permutation(26)):
        path = tmp_path / f"{order[0]}.jsonl"
        path.write_text("".join(json.dumps(rows()[k]) + "\n" for k in order))
        spec = EvaluationSpec(data=(str(path),), seq_len=40, packing="document", keep=KEEP)
        data = open_evaluation_set(spec, tokenizer)
        before = np.roll(data.tokens, 1) * (data.position > 0)
        loss = [1 + (data.tokens * 31 + before * 17 + k * 7) % 101 / (20 + k) for k in range(3)]
        out = write_drawn_result(tmp_path / f"out {order[0]}", data, tokenizer, source=path, loss=loss)
        table = argap.open_result(out).gap({name: sql for name, (sql, _) in CONDITIONS.items()})
        by = argap.open_result(out).breakdown("language").sort_values(["bin", "model"], ignore_index=True)
        figures.append(
            (table[["model", "slice", "n", "nll", "contribution", "share"]], by[["bin", "n", "contribution"]])
        )
    for one, other in zip(*figures, strict=True):
        pd.testing.assert_frame_equal(one, other, rtol=1e-9)


@pytest.mark.parametrize(
    ("by", "bins"),
    [
        ("language", ["fr", "en", "it's", "none"]),
        ("entities", ["none", "word", "name + word", "number + word"]),
        ("year", [str(year) for year in range(2015, 2022)]),
        ("repeated", ["false", "true"]),
    ],
)
def test_a_column_is_a_partition(result, plain, by, bins):
    parts = result.breakdown(by)
    assert set(parts["bin"]) == set(bins)
    if by in ("year", "repeated"):
        assert list(dict.fromkeys(parts["bin"])) == bins
    gap = result.table().set_index(["model", "slice"])["delta"]
    text = {
        "entities": lambda labels: " + ".join(labels) or "none",
        "repeated": lambda value: str(value).lower(),
    }.get(by, lambda value: "none" if value is None or value != value else str(value))
    value = plain[by].map(text)
    for model in ("m-1", "m2"):
        own = parts[parts["model"] == model].set_index("bin")
        assert own["contribution"].sum() == pytest.approx(gap[model, "overall"], abs=1e-12)
        lost = (plain[model] - plain["ref"]).groupby(value)
        for each in bins:
            assert own.loc[each, "n"] == lost.size()[each]
            assert own.loc[each, "contribution"] == pytest.approx(lost.sum()[each] / len(plain), rel=1e-9)
            assert own.loc[each, "contribution_low"] <= own.loc[each, "contribution"]


def test_the_command_slices_by_a_column(result, run_command):
    code, out, _ = run_command("slice", str(result.folder), "--by", "language", "--json")
    assert code == 0
    slices = json.loads(out)["slices"]
    assert [each["name"] for each in slices][2:] == [*dict.fromkeys(result.breakdown("language")["bin"])]
    wheres = {each["name"]: each["where"] for each in slices[2:]}
    assert wheres["it's"] == "language = 'it''s'"
    assert wheres["none"] == "language IS NULL"
    again = result.slices({"x": wheres["it's"]})[-1]
    assert again.n == next(each["n"] for each in slices if each["name"] == "it's")


def test_bins_of_any_name_are_recorded_and_stay(result, tmp_path, run_command):
    out = tmp_path / "out"
    shutil.copytree(result.folder, out)
    code, _, _ = run_command("slice", str(out), "--by", "language", "--record")
    assert code == 0
    recorded = read_gap(out).slices
    assert "it's" in [each.name for each in recorded]
    runs = [str(out / name) for name in result.models]
    assert_close(compare_runs(runs[1:], runs[0], out).slices, recorded)


def test_a_condition_lists_them_and_a_breakdown_names_them(result):
    columns = r'known columns are "window", .*, top1, language, year, entities, "Checked on"'
    with pytest.raises(ArgapError, match=columns):
        result.gap({"bad": "lang = 'fr'"})
    known = r"`by` lang: expected slice, .*, domain, copy, induction, source, word_start, .*, language, year, entities"
    with pytest.raises(ArgapError, match=known):
        result.breakdown("lang")


@pytest.mark.parametrize(
    ("name", "rule", "expected"),
    [
        ("year", lambda value: value > 2018, "year > 2018"),
        ("Checked on", lambda value: value <= 1.0, '"Checked on" <= 1.0'),
        ("language", lambda value: value == "it's", "language IS NOT DISTINCT FROM 'it''s'"),
        ("entities", lambda value: "word" in value, "list_contains(entities, 'word')"),
    ],
)
def test_discovery_splits_by_what_a_model_is_made_to_be_worse_at(result, tmp_path, tokenizer, name, rule, expected):
    packing = result.evaluation.packing
    if (packing == "packed") == (name in ("year", "language")):
        pytest.skip("two columns with each packing")
    spec = EvaluationSpec(data=result.evaluation.data, seq_len=40, packing=packing, keep=KEEP)
    data = open_evaluation_set(spec, tokenizer)
    values = data.kept.column(name, 0, len(data.tokens)).to_pylist()
    harder = 2.0 * np.array([rule(value) for value in values])
    source = result.folder.parent / "text.jsonl"
    out = write_drawn_result(tmp_path / "out", data, tokenizer, source=source, harder=harder)
    found = discover(out, read_gap(out), "m2", min_share=0.02, depth=2, leaves=3)
    assert any(expected in each.about.where for each in found.slices), [each.about.where for each in found.slices]
    assert sum(each.n for each in found.leaves) == found.whole.n
    pasted = argap.open_result(out).slices({each.bin: each.about.where or "" for each in found.slices})[2:]
    assert all(again.n >= each.n > 0 for again, each in zip(pasted, found.slices, strict=True))


def test_discovery_orders_numbers_as_conditions_do(tmp_path, tokenizer):
    """NaN counts as greater than every number, ∞ included; neither is a literal of SQL."""
    scores = [-math.inf, 1.5, math.inf, math.nan]
    made = [{"text": TEXTS[k % 3] * 3, "score": scores[k % 4]} for k in range(40)]
    (tmp_path / "text.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))
    spec = EvaluationSpec(data=(str(tmp_path / "text.jsonl"),), seq_len=40, packing="document", keep=("score",))
    data = open_evaluation_set(spec, tokenizer)
    values = np.array(data.kept.column("score", 0, len(data.tokens)).to_pylist())
    for name, harder, expected in (
        ("high", np.isnan(values), "score > 'inf'"),
        ("low", values == -np.inf, "score <= '-inf'"),
        ("middle", values == 1.5, "score > '-inf' AND score <= 1.5"),
    ):
        out = write_drawn_result(tmp_path / name, data, tokenizer, source=tmp_path / "text.jsonl", harder=4.0 * harder)
        found = discover(out, read_gap(out), "m2", min_share=0.02, depth=2, leaves=3)
        assert any(expected in each.about.where for each in found.leaves), [each.about.where for each in found.slices]


def encode(tokenizer, text: str, spans: list) -> list[tuple[str, set]]:
    """Pieces of a text and their labels."""
    document = TextDocument(text, "", "here", {"s": spans})
    (kept,) = kept_of([document], tokenizer)
    pieces = [tokenizer.pieces[i] for i in tokenizer.encode([text])[0]]
    spans = list(zip(*kept["s"], strict=True))
    return [(piece, {label for first, end, label in spans if first <= k < end}) for k, piece in enumerate(pieces)]


def test_spans_by_hand(tokenizer):
    # "def", " h", "é", "l", "lo": a span of "hé" is of the second and third token, that of a space of the second alone.
    both = encode(tokenizer, "def héllo", [{"start": 4, "end": 6, "label": "a"}, {"start": 3, "end": 4, "label": "b"}])
    assert both[:5] == [("def", set()), (" h", {"a", "b"}), ("é", {"a"}), ("l", set()), ("lo", set())]
    # "言" is three tokens, all of its character; an empty span labels none.
    pieces = encode(tokenizer, "x言葉", [{"start": 1, "end": 2, "label": "a"}, {"start": 2, "end": 2, "label": "b"}])
    assert [labels for _, labels in pieces] == [set(), {"a"}, {"a"}, {"a"}, set(), set(), set()]


def test_white_space_belongs_to_its_token_where_the_tokenizer_trims_offsets(tmp_path, tokenizer):
    from argap.text.tokenizer import load_tokenizer

    tokenizer.save(tmp_path)
    state = json.loads((tmp_path / "tokenizer.json").read_text())
    state["post_processor"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    (tmp_path / "tokenizer.json").write_text(json.dumps(state))
    trimming = load_tokenizer(tmp_path)
    assert trimming.encode_spans("a  b")[1] != [tuple(pair) for pair in trimming.offsets(["a  b"])[0].tolist()]
    spans = [{"start": 1, "end": 2, "label": "space"}]
    assert encode(trimming, "a  b", spans) == encode(tokenizer, "a  b", spans)
    assert any(labels for _, labels in encode(trimming, "a  b", spans))


def test_labels_that_end_in_a_nul_are_told_apart():
    spans = [{"first": k, "end": k + 1, "label": label} for k, label in enumerate(["a\0", "a", "b", "a\0b"])]
    columns = {TOKENS: pa.array([4]), "s": pa.array([spans], TOKEN_SPANS)}
    found = Documents(pa.table(columns)).column("s", 0, 4)
    assert found.to_pylist() == [[each["label"]] for each in spans]


def test_spans_against_a_loop():
    rng = np.random.default_rng(0)
    for _ in range(200):
        cuts = np.sort(rng.integers(0, 30, 12))
        offsets = np.column_stack([cuts[:-1], np.maximum(cuts[1:], cuts[:-1] + 1)])  # overlapping at times
        offsets = np.maximum.accumulate(offsets, axis=0)
        start, end = np.sort(rng.integers(0, 32, 2)).tolist()
        expected = [k for k, (a, b) in enumerate(offsets) if set(range(a, b)) & set(range(start, end))]
        made = token_spans(np.array([start]), np.array([end]), ["x"], offsets)
        spans = zip(made.first.tolist(), made.end.tolist(), strict=True)
        assert [k for first, stop in spans for k in range(first, stop)] == expected


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            [{"start": 5, "end": 3, "label": "x"}],
            r"text.jsonl:1: span 0 of column 's' \(5, 3, 'x'\): expected 0 <= start",
        ),
        ([{"start": 0, "end": 99, "label": "x"}], r"\(0, 99, 'x'\): .* <= 5, the characters of the text"),
        ([{"start": -1, "end": 2, "label": "x"}], r"\(-1, 2, 'x'\)"),
        ([{"start": 0, "end": 1, "label": "x"}, {"start": 0, "end": 1}], "span 1 .* found start, end$"),
        ([{"start": 0.5, "end": 1, "label": "x"}], r"\(0.5, 1, 'x'\): expected two whole numbers and a text"),
        ([{"start": True, "end": 1, "label": "x"}], "expected two whole numbers"),
        ([{"start": 0, "end": 1, "label": None}], "expected two whole numbers and a text"),
        (["x"], "span 0 of column 's': expected start, end and label, found str"),
        ({"a": 1}, r"column 's' holds an object; expected text, a number, .* or spans \[\{start, end, label\}\]"),
        (None, r"no document has a value in the column 's' to `keep`; columns are 'text', 's'$"),
    ],
)
def test_values_that_are_refused(tmp_path, tokenizer, value, message):
    (tmp_path / "text.jsonl").write_text(json.dumps({"text": "a b c", "s": value}) + "\n")
    spec = EvaluationSpec(data=(str(tmp_path / "text.jsonl"),), keep=("s",))
    with pytest.raises(ArgapError, match=message) as error:
        open_evaluation_set(spec, tokenizer)
    assert "\n" not in str(error.value)


def test_a_column_of_two_types_is_refused(tmp_path, tokenizer):
    lines = [{"text": "a b", "s": 1}, {"text": "a b", "s": 2.5}, {"text": "a b", "s": "x"}]
    (tmp_path / "text.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines[:2]))
    spec = EvaluationSpec(data=(str(tmp_path / "text.jsonl"),), keep=("s",))
    assert open_evaluation_set(spec, tokenizer).kept.types == {"s": pa.float64()}
    (tmp_path / "text.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(ArgapError, match=r"jsonl:3: column 's' holds text, and a number in .*:1; expected one type"):
        open_evaluation_set(spec, tokenizer)


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        (("piece",), "`keep` piece: a column of every token; known are window, "),
        (("Piece",), "`keep` Piece: a column of every token"),
        (("frequency",), "`keep` frequency: a breakdown"),
        (("tokens",), "`keep` tokens: "),
        (("a", "A"), "`keep` A: given twice"),
        ((" ",), "`keep` ' ': not a name"),
        (("log p of model 0",), "not a name that a condition can use"),
    ],
)
def test_names_that_are_refused_before_any_text_is_read(keep, message):
    with pytest.raises(ArgapError, match=message):
        check_spec(EvaluationSpec(keep=keep))


def test_sources_without_the_column_are_refused(tmp_path, tokenizer):
    pq.write_table(pa.table({"text": ["a b"], "date": [1]}), tmp_path / "a.parquet")
    with pytest.raises(ArgapError, match=r"a\.parquet: no column 'day' to `keep`; its columns are 'text', 'date'"):
        build_evaluation_set(open_corpus(tmp_path, keep=("day",)), tokenizer, keep=("day",))
    (tmp_path / "b.txt").write_text("a b")
    with pytest.raises(ArgapError, match=r"b\.txt: has no column 'date' to `keep`; columns are kept of JSON, CSV"):
        open_corpus(tmp_path, keep=("date",))
    with pytest.raises(ArgapError, match="stdlib:heldout: has no column"):
        open_corpus("stdlib:heldout", keep=("date",))


def test_types_of_parquet(tmp_path, tokenizer):
    spans = pa.list_(pa.struct([("label", pa.string()), ("start", pa.int64()), ("end", pa.int64())]))
    columns = {
        "text": ["a b c", "d e f"],
        "on": pa.array([date(2020, 1, 2), None]),
        "seen": pa.array([datetime(2020, 1, 2, 3, tzinfo=UTC)] * 2, pa.timestamp("ns", "Europe/Berlin")),
        "good": [True, None],
        "size": pa.array([1, 2], pa.int8()),
        "ratio": [-0.1, math.nan],
        "lang": pa.array(["x", "y"]).dictionary_encode(),
        "spans": pa.array([[{"start": 2, "end": 3, "label": "all"}], []], spans),
        "select": ["all", "overall"],
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    keep = tuple(columns)[1:]
    spec = EvaluationSpec(data=(str(tmp_path / "a.parquet"),), seq_len=16, keep=keep)
    data = open_evaluation_set(spec, tokenizer)
    out = write_drawn_result(tmp_path / "out", data, tokenizer, source=tmp_path / "a.parquet")
    result = argap.open_result(out)
    found = {
        "\"on\" = DATE '2020-01-02'": 3,
        "hour(seen) = 3": 7,
        "good": 3,
        "size::INT8 + 1 = 2": 3,
        "lang = 'y'": 4,
        "list_contains(spans, 'all')": 1,
        "\"select\" = 'all'": 3,
    }
    slices = result.slices({f"slice {k}": where for k, where in enumerate(found)})[2:]
    assert {each.about.where: each.n for each in slices} == found
    read = read_labels(out / "labels").kept.table
    assert read.drop_columns("ratio").equals(data.kept.table.drop_columns("ratio"))  # NaN equals nothing
    with pytest.raises(ArgapError, match="slice ar_hits: the name is built in"):
        result.fidelity({"ar_hits": "good"})
    for by, bins in {
        "select": {"'overall'": "\"select\" = 'overall'", "'all'": "\"select\" = 'all'"},
        "on": {"2020-01-02": "\"on\" = '2020-01-02'", "none": '"on" IS NULL'},
        "good": {"true": "good", "none": "good IS NULL"},
        "size": {"1": "size = 1", "2": "size = 2"},
        "ratio": {"-0.1": "ratio = -0.1", "nan": "ratio = 'nan'"},
        "seen": {"2020-01-02 03:00:00": "seen = '2020-01-02 03:00:00'"},
        "spans": {"'all'": "array_to_string(spans, ' + ') = 'all'", "none": "array_to_string(spans, ' + ') = ''"},
    }.items():
        parts = score_by(result.token_table, by, threshold=2)[2:]
        assert [(each.bin, each.about.where) for each in parts] == [*bins.items()]
        assert {each.name for each in result.closely(by=by) if each.model == "m2"} == {"all", "ar_hits", *bins}
        again = result.slices({f"bin {k}": where for k, where in enumerate(bins.values())})[2:]
        assert {each.about.where: each.n for each in again} == {each.about.where: each.n for each in parts}


@pytest.mark.parametrize(
    ("values", "bins"),
    [
        (["a", "a\0", "", "\0", "\0\0"], ["a", "a\0", "''", "\0", "\0\0"]),
        ([0.0, -0.0, 1.5, -0.0, None], ["0.0", "1.5", "none"]),
        (["A", "a", " a", "a ", "\u00e9", "e\u0301", "\ufeff", "\n", "NULL"],) * 2,
        (["'", "''", '"', "\\", "%", "--", "/* ", ";", "a\nb", "{reference}", "none", None], None),
        ([2**53, 2**53 + 1, -(2**63), 2**63 - 1], None),
        ([0.1, 0.1 + 2**-56, 1e22, 5e-324, math.inf, None], None),
    ],
)
def test_a_bin_has_the_tokens_of_its_condition_for_values_that_look_alike(tmp_path, tokenizer, values, bins):
    """NumPy's strings end at a NUL; -0.0 equals 0.0."""
    texts = [f"{TEXTS[k % 3] * (k + 1)}" for k in range(len(values))]
    rows = [json.dumps({"text": text, "v": value}) for text, value in zip(texts, values, strict=True)]
    (tmp_path / "text.jsonl").write_text("\n".join(rows))
    spec = EvaluationSpec(data=(str(tmp_path / "text.jsonl"),), seq_len=16, packing="document", keep=("v",))
    out = write_drawn_result(
        tmp_path / "out", open_evaluation_set(spec, tokenizer), tokenizer, source=tmp_path / "text.jsonl"
    )
    result = argap.open_result(out)
    whole, _, *parts = score_by(result.token_table, "v", threshold=2)
    assert sorted(each.bin for each in parts) == sorted(bins) if bins else len(parts) == len(values)
    assert sum(each.n for each in parts) == whole.n
    again = result.slices({f"bin {k}": each.about.where or "" for k, each in enumerate(parts)})[2:]
    assert {each.about.where: each.n for each in again} == {each.about.where: each.n for each in parts}


def test_a_limit_of_each_document(tmp_path, tokenizer):
    texts = [f"def name{k}(a): return a\n" * (41 if k == 0 else 1) for k in range(6)]
    lines = [{"text": t, "s": [{"start": 0, "end": 900 if t is texts[0] else 3, "label": "x"}]} for t in texts]
    (tmp_path / "text.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    spec = EvaluationSpec(data=(str(tmp_path / "text.jsonl"),), seq_len=16, keep=("s",))
    whole, same = (
        open_evaluation_set(EvaluationSpec(data=spec.data, seq_len=16, limit_document_tokens=limit), tokenizer)
        for limit in (None, 10_000)
    )
    assert whole.fingerprint == same.fingerprint
    cut = open_evaluation_set(
        EvaluationSpec(data=spec.data, seq_len=16, keep=("s",), limit_document_tokens=7), tokenizer
    )
    for k, line in enumerate(lines):
        own = cut.tokens[cut.document == k].tolist()
        assert own == [*tokenizer.encode([line["text"]])[0][:7].tolist(), tokenizer.eos]
    ends = [span["end"] for spans in cut.kept.table["s"].to_pylist() for span in spans]
    assert ends == [7, 1, 1, 1, 1, 1]
    of = [np.bincount(data.document) for data in (whole, cut)]
    assert effective_number(of[0]) < 2 < effective_number(of[1]) == 6
    with pytest.raises(ArgapError, match="`limit_document_tokens` 1: expected at least 2"):
        check_spec(EvaluationSpec(limit_document_tokens=1))


def test_settings_that_are_not_given_are_not_recorded():
    from argap.records import as_json

    assert as_json(EvaluationSpec(seq_len=3)) == {"seq_len": 3}
    both = EvaluationSpec(keep=("a",), limit_document_tokens=5)
    assert EvaluationSpec(seq_len=3).over(both) == EvaluationSpec(seq_len=3, keep=("a",), limit_document_tokens=5)
    assert EvaluationSpec(data=("other",)).over(both).keep == ()  # the columns are those of the recorded text
