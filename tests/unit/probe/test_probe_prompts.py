"""Prompts of ``argap probe``: a reader that sees only what comes before an answer finds it; what is refused."""

import re
from typing import Any

import numpy as np
import pytest

from argap.errors import ArgapError
from argap.probe.drafts import Draft, finish
from argap.probe.prompts import ProbeSet, build_prompts
from argap.probe.records import ProbeSpec
from argap.probe.tasks import PAIRS, TASKS
from tests.conftest import word_tokenizer

CASES = [(name, form) for name, task in TASKS.items() for form in task.forms]
LOADS = {"induction": (2, 9), "lag": (2, 30), "copy": (1, 12), "phonebook": (3, 20), "overwritten": (4, 21)}


def made_of(tokenizer: Any, **given: Any) -> ProbeSet:
    return build_prompts(ProbeSpec(**given), tokenizer)


def followers(ids: list[int]) -> int:
    """What followed the last earlier occurrence of the last token."""
    return ids[len(ids) - 1 - ids[-2::-1].index(ids[-1])]


def read_text(task: str, text: str) -> str:
    """Answer a prompt that ends where its answer begins."""
    last = text.rstrip("\n").splitlines()[-1]
    if task == "copy":
        return re.findall(r"Text: (.*)", text)[-1]
    if task == "phonebook":
        return dict(re.findall(r"^(.*): (\d+)$", text, re.M))[re.findall(r"The number of (.*) is", last)[0]]
    if task == "overwritten":  # the last write wins in a dict
        return dict(re.findall(r"^(.*) moved to room (\d+)\.$", text, re.M))[last.partition(" is now")[0]]
    if task == "multi_hop":
        teacher = dict(re.findall(r"^(.*)'s teacher is (.*)\.$", text, re.M))
        person = re.findall(r"of (\w+) is", last)[0]
        for _ in range(last.count("teacher")):
            person = teacher[person]
        return person
    assert task == "brackets"
    closing, stack = {pair[0]: pair[1] for pair in PAIRS}, []
    for bracket in re.findall(r"Open: (.*)", text)[-1].split():
        if bracket in closing:
            stack.append(closing[bracket])
        else:
            assert stack.pop() == bracket
    return " ".join(reversed(stack))


def read_tokens(task: str, ids: list[int], tokenizer: Any) -> list[int]:
    """Answer a prompt of random tokens; lines are split at line breaks, which are no ordinary tokens."""
    ends = {int(token) for text in ("\n", "\n\n") for token in tokenizer.encode([text])[0]}
    if task in ("induction", "lag"):
        return [followers(ids)]
    lines: list[list[int]] = [[]]
    for token in ids:
        if token in ends:
            lines.append([])
        else:
            lines[-1].append(token)
    if task == "copy":
        return lines[-2]
    if task in ("phonebook", "overwritten"):
        return [{line[0]: line[1] for line in lines[:-1] if len(line) == 2}[lines[-1][0]]]
    facts = {line[0]: line[-1] for line in lines[:-1] if tokenizer.decode(line[1:-1]).count(">") == 1}
    token = lines[-1][0]
    for _ in range(tokenizer.decode(lines[-1][1:]).count(">")):
        token = facts[token]
    return [token]


def assert_readable(tokenizer: Any, task: str, form: str, prompts: int) -> None:
    lengths = (0, 300) if TASKS[task].fills else (0,)
    given: Any = {"tasks": (task,), "forms": (form,), "loads": {task: LOADS.get(task, TASKS[task].loads)}}
    made = made_of(tokenizer, **given, lengths=lengths, prompts=prompts)
    assert len(made.prompts) == prompts * len(made.conditions)
    for prompt in made.prompts:
        ids = prompt.ids.tolist()
        assert prompt.answers
        for answer in prompt.answers:
            gold, before = ids[answer.start : answer.stop], ids[: answer.start]
            if form == "text":
                assert tokenizer.decode(gold).strip() == read_text(task, tokenizer.decode(before))
            else:
                assert gold == read_tokens(task, before, tokenizer)
            assert 0 < answer.distance <= answer.start
            for low, high in answer.decoys:
                assert high <= answer.start
                assert ids[low:high] != gold


@pytest.mark.parametrize(("task", "form"), CASES)
def test_a_reader_finds_every_answer(tokenizer: Any, task: str, form: str) -> None:
    assert_readable(tokenizer, task, form, 20)


@pytest.mark.slow
@pytest.mark.parametrize(("task", "form"), CASES)
def test_a_reader_finds_the_answers_of_a_thousand_prompts(tokenizer: Any, task: str, form: str) -> None:
    assert_readable(tokenizer, task, form, 1000 // (2 + 4 * TASKS[task].fills) + 1)


def test_distances_loads_and_chances_by_hand(tokenizer: Any) -> None:
    made = made_of(
        tokenizer, tasks=("induction", "lag", "phonebook"), loads={"induction": (4,), "lag": (5,), "phonebook": (3,)},
        forms=("tokens",), lengths=(12,), prompts=2, shots=1,
    )  # fmt: skip
    repeated, lagged, book = (made.prompts[made.of(k)[0]] for k in range(3))
    assert [(a.start, a.distance, a.chance) for a in repeated.answers] == [(5, 4, 0.25), (6, 4, 0.25), (7, 4, 0.25)]
    assert repeated.control == (1, 4)
    assert np.array_equal(repeated.ids[:4], repeated.ids[4:])
    assert (len(lagged.ids), lagged.answers[0].start, lagged.answers[0].distance) == (14 - 2, 11, 5)
    assert lagged.answers[0].chance == 1 / 11
    # Three facts of three tokens each (key, value, line break), three of filler and a line break; a solved question of
    # three, then the key and the answer.
    (answer,) = book.answers
    assert answer.start == 9 + 3 + 1 + 3 + 1
    asked = int(book.ids[answer.start - 1])
    assert answer.distance == answer.start - (book.ids.tolist().index(asked) + 1)
    assert (answer.chance, len(answer.decoys)) == (1 / 3, 2)


def test_the_same_text_for_every_tokenizer_and_another_for_another_seed(tokenizer: Any) -> None:
    given: Any = {"tasks": ("overwritten",), "forms": ("text",), "prompts": 2, "loads": {"overwritten": (4,)}}
    texts = [tokenizer.decode(prompt.ids) for prompt in made_of(tokenizer, **given).prompts]
    words = sorted({word for text in texts for word in text.split()})
    other = word_tokenizer([*words, "?"], unknown="?")
    assert [other.decode(p.ids).split() for p in made_of(other, **given).prompts] == [text.split() for text in texts]
    assert texts[0] != texts[1]
    assert tokenizer.decode(made_of(tokenizer, **given, seed=1).prompts[0].ids) != texts[0]


def test_an_answer_has_every_token_that_overlaps_it(tokenizer: Any) -> None:
    draft = Draft()
    found = draft.fill("{key}: {value}. {again}", {"key": "Ada", "value": "7301942", "again": "7301942"})
    draft.ask(found["again"], found["value"], 0.5, [found["key"]])
    (prompt,) = finish([draft], tokenizer)
    (answer,) = prompt.answers
    assert tokenizer.decode(prompt.ids) == "Ada: 7301942. 7301942"
    assert tokenizer.decode(prompt.ids[answer.start : answer.stop]) == " 7301942"
    assert prompt.ids[answer.start - answer.distance] == prompt.ids[answer.start]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tasks": ("phonebok",)}, r"`tasks` phonebok: unknown; known are induction, lag, copy, .*brackets"),
    ({"tasks": ("brackets",), "forms": ("tokens",)}, "`forms` tokens: no task of brackets has these"),
    ({"loads": {"phonebook": (2,)}}, r"`load` phonebook=2: expected at least 3 \(entries\) with 2 solved questions"),
    ({"loads": {"induction": (1,)}}, r"`load` induction=1: expected at least 2 \(period\)"),
    ({"prompts": 1}, "prompts: expected 2 to 1,000,000, found 1"),
    (
        {"tasks": ("phonebook",), "forms": ("tokens",), "lengths": (100,), "loads": {"phonebook": (64,)}},
        "phonebook, entries 64: `length` 100: the facts of phonebook take 192 tokens; use more",
    ),
    (
        {"tasks": ("lag",), "lengths": (20,), "loads": {"lag": (30,)}},
        "lag, lag 30: `length` 20: the facts of lag take 32 tokens",
    ),
    (
        {"tasks": ("multi_hop",), "forms": ("text",), "loads": {"multi_hop": (20,)}},
        "multi_hop, hops 20: 88 names in a prompt of text; there are 64",
    ),
    (
        {"tasks": ("induction",), "loads": {"induction": (9000,)}},
        r"induction, period 9000: .*: [\d,]+ ordinary tokens in its vocabulary; the prompt needs 9,000 different ones",
    ),
]


@pytest.mark.parametrize(("given", "message"), REFUSED, ids=[message[:20] for _, message in REFUSED])
def test_what_cannot_be_asked_is_refused(tokenizer: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgapError, match=message) as error:
        made_of(tokenizer, **{"prompts": 2} | given)
    assert "\n" not in str(error.value)


def test_text_that_a_tokenizer_cannot_spell_is_refused() -> None:
    with pytest.raises(ArgapError, match="words: the tokenizer cannot spell a prompt's text"):
        made_of(word_tokenizer(["Open:", "?"], unknown="?"), tasks=("brackets",), prompts=2)


def test_all_of_a_small_vocabulary_is_used_and_no_more() -> None:
    tokenizer = word_tokenizer([*"abcdef", "?"], unknown="?")
    given: Any = {"tasks": ("induction",), "prompts": 20}
    made = made_of(tokenizer, **given, loads={"induction": (6,)})
    assert {tuple(sorted(prompt.ids[:6].tolist())) for prompt in made.prompts} == {tuple(range(6))}
    with pytest.raises(ArgapError, match="words: 6 ordinary tokens in its vocabulary; the prompt needs 7 different"):
        made_of(tokenizer, **given, loads={"induction": (7,)})


def test_a_prompt_is_a_window_and_a_document(tokenizer: Any) -> None:
    data = made_of(tokenizer, tasks=("lag",), prompts=3, loads={"lag": (4, 9)}).data
    assert (data.windows, len(data.domains), data.longest) == (6, 6, 17)
    assert data.document_of_window.tolist() == list(range(6))
