"""What the server answers, at any τ and against any reference, compared with the Python surface."""

import io
import shutil
from functools import partial
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from argap.errors import ArgapError, FormatError
from argap.files import checksums
from argap.files.parquet import read_portions
from argap.metric.bins import bins_of
from argap.reports.tables.formats import markdown
from argap.reports.tables.result import gap_table
from argap.result import open_result
from argap.results.by_source import sources_of
from argap.results.restated import cells_at, restate, thresholds_of
from argap.runtime.interrupt import Interrupt
from argap.slices.cells import KEYS, ar_hits, keys_of, sum_by, sum_cells
from argap.view.answers import Answers, Setting, at_every_threshold

ROOT = Path(__file__).parents[3]


def ask(client, path, **parameters):
    answer = client.get(f"/api/{path}", params=parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()


def contributions(breakdown, model):
    """Their sum over the bars."""
    figures = [each for bar in breakdown["bars"] for each in bar["part"]["models"] if each["model"] == model]
    return sum(each["contribution"] for each in figures)


def test_the_overview_is_gap_json_and_what_the_page_may_do(client, result):
    made = ask(client, "overview")
    model, own = result.models[1], made["gap"]["ar_hits"]["models"][1]
    assert (own["model"], own["share"]) == (model, result.record.on_hits[model].share)
    assert made["thresholds"][:4] == [0, 1, 2, 5]
    assert [mark["threshold"] for mark in made["marks"]] == [1250, 0]  # 1,250 in 10 B, scaled to some thousand tokens
    assert made["name"].endswith("/out")
    assert "no_tokens" not in made or made["no_tokens"] is None
    assert {"repeated", "digits"} < {each["name"] for each in made["library"]}


def test_a_warm_page_does_not_check_files_again(result, monkeypatch):
    setting = Setting(2, "ref")
    asked = [("late", "pos > 9")], setting, ["m2"], Interrupt()
    expected = Answers(result).slices(*asked)
    monkeypatch.setattr(checksums, "_whole", set())
    answers = Answers(open_result(result.folder))
    answers.warm(Interrupt())
    monkeypatch.setattr(checksums, "crc32_of_blocks", lambda *_: iter(["another"]))
    assert answers.slices(*asked) == expected


def test_warming_stops_where_the_server_does(result, monkeypatch):
    interrupt = Interrupt()
    interrupt.set()
    monkeypatch.setattr(checksums, "_whole", set())
    Answers(result).warm(interrupt)
    assert checksums._whole == set()


@pytest.mark.parametrize("tau", [0, 2, 10])
def test_thresholds_are_those_of_result_gap(client, result, tau):
    made = ask(client, "thresholds", intervals=1)
    (at,) = [each for each in made["at"] if each["threshold"] == tau]
    frame = result.gap({}, threshold=tau)
    expected = frame[(frame["slice"] == "ar_hits") & (frame["model"] == "m2")].iloc[0]
    (own,) = [each for each in at["ar_hits"]["models"] if each["model"] == "m2"]
    assert own["share"] == pytest.approx(expected["share"], rel=1e-6)
    assert own["share_ci95"] == pytest.approx([expected["share_low"], expected["share_high"]], rel=1e-6)
    assert at["ar_hits"]["share_of_tokens"] == expected["share_of_tokens"]


@pytest.mark.parametrize("by", ["frequency", "distance", "position", "domain", "copy", "induction", "slice"])
@pytest.mark.parametrize("threshold", [2, 10])
def test_a_bins_condition_selects_its_tokens(client, result, by, threshold):
    made = ask(client, "breakdown", by=by, threshold=threshold)
    named = {f"bin {k}": bar["where"] for k, bar in enumerate(made["bars"])}
    _, _, *slices = result.slices(named, threshold=threshold)
    assert [each.n for each in slices] == [bar["part"]["n"] for bar in made["bars"]]
    assert contributions(made, "m2") == pytest.approx(result.record.deltas["m2"])


def test_a_breakdown_against_another_reference(client, result):
    made = ask(client, "breakdown", by="distance", reference="m2")
    whole = result.record.on_all
    assert contributions(made, "ref") == pytest.approx(whole["ref"].nll - whole["m2"].nll)


@pytest.mark.parametrize(("threshold", "reference"), [(2, "ref"), (10, "ref"), (2, "m2")])
def test_the_share_without_a_domain_is_that_of_its_tokens(client, result, threshold, reference):
    """Every document here is a source of its own, so domains are left out."""
    sources = sources_of(result.folder, result.record, result.cells["document"].to_numpy())
    assert sources == dict(enumerate(result.token_table.record.sources))
    made = ask(client, "sources", threshold=threshold, reference=reference)
    assert (made["by"], {row["name"] for row in made["sources"]}) == ("domain", {"code", "prose"})
    sums = {}
    for row in result.tokens(None, columns=["domain", "nll", "repeated", "train_count"]).to_pylist():
        lost = row["nll"]["m-1"] - row["nll"][reference]
        is_hit = row["repeated"] and row["train_count"] <= threshold
        for key in (row["domain"], "all"):
            whole, hits = sums.get(key, (0.0, 0.0))
            sums[key] = whole + lost, hits + lost * is_hit
    for row in made["sources"]:
        (own,) = [each for each in row["models"] if each["model"] == "m-1"]
        whole, hits = (a - b for a, b in zip(sums["all"], sums[row["name"]], strict=True))
        assert own["part"] == pytest.approx(sums[row["name"]][0] / sums["all"][0], rel=1e-5)
        assert own["hits"] == pytest.approx(hits / whole, rel=1e-5)


def test_sources_follow_a_threshold_beyond_the_bin_of_the_results_own():
    answers = Answers(open_result(ROOT / "results" / "table2-mini" / "7m"))
    setting = Setting(2000, "base_conv")
    gap, found = answers.gap(setting), answers.sources(setting)
    assert found.by == "source"
    shares = {each.model: each.hits for each in found.hits if each.hits is not None}
    assert shares == pytest.approx({model: gap.on_hits[model].share for model in shares}, rel=1e-9)
    assert len(shares) == 5


def test_slices_are_those_of_result_gap(client, result):
    where = "repeated AND train_count < 10"
    (made,) = ask(client, "slices", where=where, name="rare", model="m-1")
    expected = result.gap({"rare": where})
    row = next(row for _, row in expected.iterrows() if (row["slice"], row["model"]) == ("rare", "m-1"))
    own = made["models"][1]
    assert (made["n"], made["share_of_tokens"], made["ar_hits"]) == (row["n"], row["share_of_tokens"], row["ar_hits"])
    assert own["share"] == pytest.approx(row["share"], rel=1e-9)
    assert own["contribution_ci95"] == pytest.approx([row["contribution_low"], row["contribution_high"]], rel=1e-9)


def test_a_condition_may_name_models_that_are_not_shown(client, result):
    where = "nll.m2 > nll.{reference} + 1"
    (made,) = ask(client, "slices", where=where, name="hard", model="m-1", reference="m-1")
    assert [each["model"] for each in made["models"]] == ["m-1"]
    expected = result.tokens('nll.m2 > nll."m-1" + 1', columns=["pos"])
    assert made["n"] == len(expected)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("repeated AND", "does not parse"),
        ("nothing = 1", 'known columns are "window"'),
        ("piece IN (SELECT 1)", "holds a subquery"),
        ("piece = 'not there at all'", "selects no token"),
        ("read_text('/etc/passwd') = ''", "condition"),
        ("", "is empty"),
    ],
)
def test_refused_conditions_are_one_line(client, where, message):
    made = ask(client, "slices", where=where, name="slice", model="m2")
    assert message in made["error"]
    assert "\n" not in made["error"]


def test_a_window_has_every_token_with_its_figures(client, result):
    made = ask(client, "window", window=3, model="m2", reference="ref")
    rows = result.tokens('"window" = 3', models=["m2", "ref"]).to_pandas()
    assert len(made["tokens"]) == len(rows) + 1  # position 0 is context
    own, reference = made["models"]
    assert (own["model"], reference["model"]) == ("m2", "ref")
    assert own["nll"][0] is None
    assert own["nll"][1:] == pytest.approx([each["m2"] for each in rows["nll"]])
    assert own["right"][1:] == [each["m2"] == token for each, token in zip(rows["top1"], rows["token"], strict=True)]
    for name in ("repeated", "distance", "occurrences", "train_count"):
        assert made[name][1:] == rows[name].tolist()
    assert made["ids"][1:] == rows["token"].tolist()
    assert made["document"] == rows["document"][0]
    assert (
        own["rank"] == pq.read_table(result.folder / "m2" / "tokens", filters=[("window", "=", 3)])["rank"].to_pylist()
    )
    assert own["rank"][:1] == [None]
    assert [rank == 1 for rank in own["rank"]] == own["right"]
    without = ask(client, "window", window=3, model="m-1", reference="ref")["models"]
    assert [each.get("rank") is None for each in without] == [True, False]  # m-1 was scored without ranks


def test_every_window_is_found_wherever_the_shards_end(client, result):
    """The shards of the three runs end at multiples of 20, 27 and 34 windows."""
    counts = result.tokens(columns=["window"]).to_pandas()["window"].value_counts()
    for window in (0, 19, 20, 26, 27, 33, 34, 54, result.evaluation.windows - 1):
        made = ask(client, "window", window=window, model=["m-1", "m2"])
        assert len(made["tokens"]) == counts[window] + 1


def test_worst_windows_are_ordered_by_loss(client, result):
    made = ask(client, "windows", model="m2", reference="ref")
    rows = result.tokens(columns=["window", "nll"]).to_pandas()
    lost = rows["nll"].map(lambda each: each["m2"] - each["ref"]).groupby(rows["window"].to_numpy()).mean()
    assert [each["window"] for each in made[:3]] == lost.sort_values(ascending=False).index[:3].tolist()
    assert made[0]["delta"] == pytest.approx(lost.max(), rel=1e-5)


def test_largest_losses_come_first(client, result):
    made = ask(client, "losses", where="ar_hits", model="m2", reference="ref")
    rows = result.tokens("repeated AND train_count <= 2", columns=["window", "pos", "piece", "nll"]).to_pandas()
    rows["lost"] = rows["nll"].map(lambda each: each["m2"] - each["ref"])
    rows = rows.sort_values("lost", ascending=False, kind="stable")
    first = made["matches"][0]
    assert (first["window"], first["pos"]) == (rows.iloc[0]["window"], rows.iloc[0]["pos"])
    assert first["nll"][0] - first["nll"][1] == pytest.approx(rows.iloc[0]["lost"])
    assert made["more"] == (len(rows) > len(made["matches"]))
    ordered = ask(client, "losses", where="ar_hits", model="m2", reference="ref", in_order=1)["matches"]
    assert [(each["window"], each["pos"]) for each in ordered] == sorted(
        (each["window"], each["pos"]) for each in ordered
    )


@pytest.mark.parametrize(("text", "tokens"), [("Ada Lovelace met", 3), ("ada lovelace", 2), ("言葉. Then", 2)])
def test_search_reaches_over_tokens(client, result, text, tokens):
    made = ask(client, "search", text=text)
    assert made["matches"]
    for each in made["matches"]:
        window = ask(client, "window", window=each["window"], model="ref")["tokens"]
        joined = "".join(window[each["pos"] : each["pos"] + each["tokens"]]).replace("⋯", "")
        assert text.lower() in joined.lower()
        assert each["tokens"] >= tokens
        assert each["text"].lower() == text.lower()


def test_search_counts_every_occurrence_once(client, result):
    """Of capitals: Ada Lovelace stands in the text 30 / 3 times with 1 to 5 repeats; a small letter matches both."""
    exact, folded = (ask(client, "search", text=text)["matches"] for text in ("Ada", "ada"))
    assert len(exact) == len(folded)
    assert ask(client, "search", text="ADA")["matches"] == []


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("window?window=999&model=m2", "window 999: expected one of 0 to"),
        ("window?window=-1&model=m2", "`window` -1: expected a whole number"),
        ("window?window=x&model=m2", "`window` x: expected a whole number"),
        ("window?model=m2", "`window` is missing"),
        ("window?window=0&model=gone", "`models` gone: not compared here"),
        ("breakdown?by=colour", "`by` colour: expected"),
        ("breakdown?by=distance&threshold=3", "`threshold` 3: expected the upper end of a bin"),
        ("thresholds?reference=gone", "`reference` gone: not one of the models"),
        ("search?text=", "`text` is empty"),
        ("slices?where=repeated", "`where` and `name` come in pairs"),
        ("losses?model=m2", "`where` is missing"),
    ],
)
def test_bad_questions_are_one_line(client, path, message):
    answer = client.get(f"/api/{path}")
    assert answer.status_code == 200
    assert answer.json()["error"].startswith(message)


def test_an_unknown_answer_is_a_404(client):
    assert client.get("/api/nothing").status_code == 404


def test_the_table_is_kept_as_it_is_printed(client, result):
    answer = client.get("/api/keep/table?format=md")
    assert answer.text == markdown(gap_table(result.record))
    assert 'filename="' in answer.headers["content-disposition"]
    tex = client.get("/api/keep/table?format=tex&threshold=10&reference=m2").text
    assert r"\begin{tabular}{lrrrrrr}" in tex
    assert r"$\Delta$NLL & 95\% interval" in tex


@pytest.mark.parametrize("wanted", ["csv", "parquet"])
def test_frames_are_those_of_the_result(client, result, wanted):
    def frame(path):
        content = client.get(f"/api/keep/{path}&format={wanted}").content
        return pd.read_csv(io.BytesIO(content)) if wanted == "csv" else pd.read_parquet(io.BytesIO(content))

    def assert_same(kept, expected):
        kept, expected = (each.astype(object).where(each.notna(), "none") for each in (kept, expected))
        pd.testing.assert_frame_equal(kept, expected, check_dtype=False)

    assert_same(frame("table?"), result.table())
    assert_same(frame("breakdown?by=distance"), result.breakdown("distance"))
    other = frame("table?threshold=10&reference=m2")
    assert other["slice"].tolist().count("ar_hits") == 3
    kept = frame("slices?where=word_start&name=starts&model=m2")
    assert set(kept["slice"]) == {"starts"}
    assert set(kept["model"]) == {"ref", "m2"}


def test_tokens_are_kept_with_every_column(client, result):
    content = client.get("/api/keep/tokens?where=ar_hits&model=m2&format=parquet").content
    rows = pq.read_table(io.BytesIO(content))
    assert rows.equals(result.tokens("repeated AND train_count <= 2", models=["m2"]))
    text = client.get("/api/keep/tokens?where=ar_hits&model=m2&format=csv").text
    assert len(text.splitlines()) >= len(rows)
    assert '"nll.m2"' in text.splitlines()[0]


def test_kept_files_refuse_as_an_error(client):
    answer = client.get("/api/keep/tokens?where=ar_hits&model=m2&format=md")
    assert (answer.status_code, answer.json()["error"]) == (400, "`format` md: tokens are kept as csv or parquet")
    assert client.get("/api/keep/table?format=doc").status_code == 400


def figures(scored, model):
    """NLL on the slice, the part of the gap and its share, with their intervals."""
    own = scored[model]
    return [own.nll, own.contribution, *own.contribution_ci95, own.share, *own.share_ci95]


def test_every_threshold_is_what_the_tokens_say(result):
    made = at_every_threshold(result.record, result.cells, "ref", intervals=True)
    assert [each.threshold for each in made.at] == list(thresholds_of(result.record))
    assert {0, 1, 2, 5, 10} < {each.threshold for each in made.at}
    shares = [each.ar_hits.share_of_tokens for each in made.at]
    assert shares == sorted(shares)
    assert shares[0] < shares[3]
    for at in made.at[:6]:
        whole, hits = result.slices({}, threshold=at.threshold)
        assert (at.ar_hits.n, at.other.n) == (hits.n, whole.n - hits.n)
        for model in ("m-1", "m2"):
            assert figures(at.ar_hits, model) == pytest.approx(figures(hits, model), rel=1e-6)


def test_without_intervals_the_numbers_are_the_same(result):
    quick, full = (at_every_threshold(result.record, result.cells, "m2", intervals=each) for each in (False, True))
    assert quick.reference == "m2"
    for one, other in zip(quick.at, full.at, strict=True):
        for model, a in one.ar_hits.estimates.items():
            b = other.ar_hits[model]
            assert (a.nll, a.share) == (pytest.approx(b.nll), pytest.approx(b.share))


@pytest.mark.parametrize("threshold", [2, 5])
def test_restated_rows_are_those_of_the_tokens(result, threshold):
    """At the result's own τ of 2, and beyond it, so that the bins 3–5 come in."""
    made = restate(result.record, result.cells, threshold=threshold, reference="m-1")
    frame = result.gap({}, threshold=threshold)
    assert made.models == ["m-1", "ref", "m2"]
    assert made.threshold == threshold
    for model in made.models:
        expected = frame[(frame["model"] == model) & (frame["slice"] == "ar_hits")].iloc[0]
        assert made.on_hits.n == expected["n"]
        assert made.on_hits[model].nll == pytest.approx(expected["nll"])
    assert made.deltas["m2"] == pytest.approx(made.on_all["m2"].nll - made.on_all["m-1"].nll)


def test_bins_of_another_threshold_keep_every_token(result):
    """The own τ of 1,250 is a bound that τ = 5,000 does not need: the bins on both sides of it become one."""
    committed = open_result(Path(__file__).parents[3] / "results" / "table1-mini" / "7m")
    cells, gap = committed.cells, committed.record
    merged = cells_at(cells, gap, 5000)
    n, frequency = (cells[name].to_numpy() for name in ("n", "frequency"))
    assert merged["n"].to_numpy().sum() == n.sum()
    assert len(set(merged["frequency"])) == len(set(frequency)) - 1
    own = cells["repeated"].to_numpy() & (frequency <= [each.high for each in gap.bins.frequency].index(5000))
    assert merged["n"].to_numpy()[ar_hits(merged, 5000, bins_of(5000, gap.evaluation.seq_len))].sum() == n[own].sum()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            {"threshold": 4, "reference": "ref"},
            "`threshold` 4: expected the upper end of a bin of its cells, one of 0, 1",
        ),
        ({"threshold": 2, "reference": "gone"}, "`reference` gone: not one of the models compared, which are ref, m-1"),
    ],
)
def test_other_settings_are_refused(result, setting, message):
    with pytest.raises(ArgapError) as refused:
        restate(result.record, result.cells, **setting)
    assert str(refused.value).startswith(message)


def test_the_own_setting_is_the_record_itself(result):
    assert restate(result.record, result.cells, threshold=2, reference="ref") is result.record


def test_cells_summed_in_the_file_are_those_in_memory(token_result, result):
    made = sum_cells(token_result / "cells.parquet", ["document", "distance"], ["m2", "ref"], result.record)
    columns = ["document", "distance", "n", "logprob/m2", "logprob/ref"]
    expected = sum_by(result.cells[columns], ["document", "distance"])
    pd.testing.assert_frame_equal(made, expected, check_dtype=False)
    assert keys_of(token_result / "cells.parquet") == tuple(KEYS)
    with pytest.raises(FormatError, match="no column colour; expected colour, n"):
        sum_cells(token_result / "cells.parquet", ["colour"], ["m2"], result.record)


@pytest.mark.parametrize("name", ["document=7", "distance=3", "a[1]", "*", "~"])
def test_a_folder_s_name_says_nothing_of_the_cells_in_it(name, token_result, result, tmp_path, monkeypatch):
    """Databases read ``document=7`` in a path as a column, and take others for patterns."""
    shutil.copytree(token_result, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    by, models = ["document", "distance"], ["m2", "ref"]
    made = sum_cells(Path(name) / "cells.parquet", by, models, result.record)
    pd.testing.assert_frame_equal(made, sum_cells(token_result / "cells.parquet", by, models, result.record))


def test_cells_are_summed_over_portions(token_result, result, monkeypatch):
    arguments = token_result / "cells.parquet", ["document", "domain"], ["m2"], result.record
    whole = sum_cells(*arguments)
    monkeypatch.setattr("argap.slices.cells.read_portions", partial(read_portions, rows=50))
    monkeypatch.setattr("argap.slices.cells.PENDING", 10)
    assert len(whole) > 10
    pd.testing.assert_frame_equal(sum_cells(*arguments), whole)


@pytest.mark.parametrize("name", ["m_low", "m_high"])
def test_a_model_s_name_may_end_as_that_of_a_bound(name, token_result, tmp_path):
    table = pq.read_table(token_result / "cells.parquet")
    columns = {"logprob/m2": f"logprob/{name}"}
    pq.write_table(
        table.rename_columns([columns.get(each, each) for each in table.column_names]), tmp_path / "c.parquet"
    )
    assert max(sum_cells(tmp_path / "c.parquet", ["document"], [name])[f"logprob/{name}"].tolist()) < 0
    at = table.schema.get_field_index("logprob/m2")
    null = pa.array([None, *table["logprob/m2"].to_pylist()[1:]])
    pq.write_table(table.set_column(at, f"logprob/{name}", null), tmp_path / "c.parquet")
    with pytest.raises(FormatError, match=f"logprob/{name} is null in 1 rows"):
        sum_cells(tmp_path / "c.parquet", ["document"], [name])
