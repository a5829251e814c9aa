"""Rows, protocol and prompts: what a model is asked, and which input is refused."""

import json
import re
from typing import Any

import pytest

from argap.errors import ArgapError, FormatError
from argap.recall.examples import TASKS, Example, contains, load_examples, load_tasks, split_query, whole_word
from argap.recall.prompts import Protocol, build_prompt, check_fits

TEXT = "maker: Corfi Works\ncolour: amber\nweight: 5 g\nmodel code: K123456\nwarranty: 20 months\ncolour:"


@pytest.mark.parametrize("task", TASKS)
def test_the_fixture_is_the_same_each_time_and_its_texts_contain_the_golds(task: str) -> None:
    examples = load_examples(task, "fixture")
    assert examples.label == f"fixture:{task}"
    assert len(examples.rows) == 20
    assert examples.fingerprint == load_examples(task, "fixture").fingerprint
    assert examples.gold_absent == 0
    assert all(split_query(row.text, task)[1].rstrip().endswith(":") for row in examples.rows)


def test_needles_lie_at_their_depth_in_texts_of_their_length() -> None:
    examples = load_examples("needle", "needles:64,200")
    assert (examples.label, len(examples.rows)) == ("needles in 64, 200 words", 40)
    assert load_examples("needle").source == "needles:128,256,512"
    # Pinned: the same rows for everybody.
    assert examples.fingerprint.startswith("171647e95926")
    for row in examples.rows:
        text, query = split_query(row.text, "needle")
        length, depth = map(int, re.findall(r"\d+", row.key))
        sentences = text.split(". ")
        found = [k for k, sentence in enumerate(sentences) if query.strip().removesuffix(" is:") in sentence]
        assert len(found) == 1  # a reader finds one needle of the name, and in it the gold
        assert sentences[found[0]].rstrip(".").endswith(f"is: {row.gold}")
        assert length - 16 < len(text.split()) <= length
        assert abs(found[0] / (len(sentences) - 1) - depth / 100) < 0.1
        assert len(re.findall(r"The locker code of", text)) == 4
    for source in ("needles:", "needles:63", "needles:128,x"):
        with pytest.raises(ArgapError, match=f"`data` {source}: expected lengths of 64 to 1,000,000 words"):
            load_examples("needle", source)


def test_contains_and_whole_word() -> None:
    assert contains(" it is AMBER.", "amber")
    assert contains("1995", "5")
    assert not whole_word("1995", "5")
    assert whole_word("(5) g", "5")
    assert contains("a+b", "A+B")  # no pattern


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "a\nb:", "key": "b"}, "column 'value'"),
        ({"text": "a\nb:", "key": "b", "value": "  "}, "gold .* is empty"),
    ],
)
def test_bad_rows_are_named(tmp_path, row, message: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row))
    with pytest.raises(ArgapError, match=message):
        load_examples("fda", str(path))


@pytest.mark.parametrize("name", [True, 1.5, [], ["a"], {"a": 1}])
@pytest.mark.parametrize("column", ["doc_id", "file_name", "title"])
def test_names_that_are_none_are_refused(tmp_path, column: str, name: Any) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"text": "a:", "key": "a", "value": "x", column: name}))
    with pytest.raises(ArgapError, match=f"row 1: expected a string or a whole number in column '{column}', found"):
        load_examples("fda", str(path))


def test_a_row_without_names_is_named_by_its_number(tmp_path) -> None:
    path = tmp_path / "rows.jsonl"
    own = [{"doc_id": 0, "title": ""}, {"doc_id": None, "file_name": None}, {"doc_id": "c", "title": "T"}]
    path.write_text("\n".join(json.dumps({"text": "a:", "key": "a", "value": "x"} | names) for names in own))
    found = [(row.id, row.document) for row in load_examples("fda", str(path)).rows]
    assert found == [("0", "0"), ("1", "2"), ("c", "T")]


def test_bad_files_and_names(tmp_path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text"')
    with pytest.raises(FormatError, match="line 1"):
        load_examples("fda", str(path))
    path.write_bytes(b"PAR1\xb0")
    with pytest.raises(FormatError, match=r"rows\.jsonl, line 1: not JSON"):
        load_examples("fda", str(path))
    path.write_text("")
    with pytest.raises(ArgapError, match="no rows"):
        load_examples("fda", str(path))
    with pytest.raises(ArgapError, match="expected some of swde, fda, squad"):
        load_examples("fad", "fixture")
    with pytest.raises(ArgapError, match="nothing is cut"):
        Protocol(truncate="oracle")
    with pytest.raises(ArgapError, match="more than the 48"):
        Protocol(context=48)


def test_without_the_hub_the_message_says_how_to_give_the_rows(monkeypatch) -> None:
    import huggingface_hub

    def fails(*_, **__):
        raise ConnectionError("no route")

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", fails)
    with pytest.raises(ArgapError, match=r"no route.*`data=fda=FILE.jsonl`"):
        load_examples("fda")


def test_each_task_has_its_own_file(tmp_path) -> None:
    for task in ("fda", "swde"):
        (tmp_path / f"{task}.jsonl").write_text(json.dumps({"text": f"{task}\na:", "key": "a", "value": "x"}))
    files = [f"{task}={tmp_path / task}.jsonl" for task in ("fda", "swde")]
    assert [examples.rows[0].text for examples in load_tasks(["swde", "fda"], files)] == ["swde\na:", "fda\na:"]
    (only,) = load_tasks(["fda"], [str(tmp_path / "fda.jsonl")])
    assert only.label == "fda.jsonl (fda form)"
    with pytest.raises(ArgapError, match=r"rows\.jsonl: for which task"):
        load_tasks(["swde", "fda"], ["rows.jsonl"])


def test_a_gold_absent_from_the_text_is_counted(tmp_path) -> None:
    path = tmp_path / "own.jsonl"
    rows = [{"text": "a is one\na:", "key": "a", "value": v} for v in ("one", "two")]
    path.write_text("\n".join(map(json.dumps, rows)))
    examples = load_examples("fda", str(path))
    assert (examples.gold_absent, examples.label) == (1, "own.jsonl (fda form)")


def test_prompts_are_cut_and_golds_located(tokenizer) -> None:
    example = Example("0", "page", "colour", "amber", TEXT)
    whole = build_prompt(example, "swde", tokenizer, Protocol())
    assert tokenizer.decode(whole.ids) == TEXT
    ((first, last),) = whole.golds
    assert tokenizer.decode(whole.ids[first:last]).strip() == "amber"
    assert whole.distance == len(whole.ids) - first
    assert tokenizer.decode(whole.ids[whole.query :]).strip() == "colour:"
    assert whole.distance is not None
    room = whole.distance - 1  # one token less than the gold needs
    cut = build_prompt(example, "swde", tokenizer, Protocol(context=48 + room))
    assert cut.ids == whole.ids[-room:]
    assert cut.truncated == len(whole.ids) - room
    assert (cut.golds, cut.distance, cut.gold_in_text) == ([], None, True)
    oracle = build_prompt(example, "swde", tokenizer, Protocol(context=48 + room, truncate="oracle"))
    ((first, last),) = oracle.golds
    assert len(oracle.ids) == room
    assert tokenizer.decode(oracle.ids[first:last]).strip() == "amber"
    assert oracle.ids[oracle.query :] == whole.ids[whole.query :]
    twice = build_prompt(example, "swde", tokenizer, Protocol(twice=True))
    assert tokenizer.decode(twice.ids) == f"{TEXT}\n{TEXT}"
    assert len(twice.golds) == 2
    with pytest.raises(ArgapError, match="`context=64`"):
        check_fits([whole], 64, "model")


def test_the_oracle_keeps_a_stretch_around_the_gold_and_the_query(tokenizer) -> None:
    """40 lines with the gold in the middle: neither the first nor the last tokens contain it."""
    lines = [f"line {k}: nothing here" for k in range(40)]
    lines[20] = "colour: amber"
    example = Example("0", "page", "colour", "amber", "\n".join([*lines, "colour:"]))
    cut = build_prompt(example, "swde", tokenizer, Protocol(context=48 + 30))
    prompt = build_prompt(example, "swde", tokenizer, Protocol(context=48 + 30, truncate="oracle"))
    assert len(prompt.ids) == len(cut.ids) == 30
    assert (len(prompt.golds), len(cut.golds)) == (1, 0)
    middle = 15 - 2  # half of what the query (colour, :, and the line break before) leaves, about
    assert abs(prompt.golds[0][0] - middle) <= 3
