"""The tasks: what is told, what is asked, and what a reader of the prompt would answer.

Each builder returns a `Draft` from its material (`argap.probe.kits`), its load, the length that facts and filler
should have, and how many solved questions come before the one that is scored.
"""

from collections.abc import Callable
from dataclasses import dataclass

from argap.errors import ArgapError
from argap.probe.drafts import Draft, Part
from argap.probe.kits import FORMS, Form, Kit

PAIRS = ("()", "[]", "{}", "<>")
CHAINS = 4
"""Chains among which a multi-hop question picks one, at least."""
WRITES_PER_KEY = 4


@dataclass(frozen=True)
class Task:
    """An entry of `TASKS`."""

    build: Callable[[Kit, int, int, int], Draft]
    """Maps kit, load, length and shots to a draft."""
    load: str
    """What the load counts."""
    loads: tuple[int, ...]
    least: int
    asks: str
    """The question in one line, for people."""
    forms: tuple[Form, ...] = FORMS
    fills: bool = False
    """Whether filler between facts and questions can give a prompt a length of its own."""
    shots: bool = True
    """Whether solved questions come first; a repetition needs none."""


def induction(kit: Kit, load: int, length: int, shots: int) -> Draft:
    """Repeat ``load`` random tokens once; each token of the repetition but its first is an answer."""
    draft, string = Draft(), kit.string(load)
    draft.control = draft.write(string)
    draft.ask(draft.write(string), draft.control, 1 / load, each_after_first=True)
    return draft


def lag(kit: Kit, load: int, length: int, shots: int) -> Draft:
    """Ask for the token after the earlier occurrence of the last one, ``load`` tokens back, among random tokens."""
    length = length or load + 8
    _check_room("lag", load + 2, length, kit)
    draft, (first, second) = Draft(), kit.keys(2)
    draft.write(kit.string(length - load - 2))
    draft.write(first)
    source = draft.write(second)
    draft.write(kit.string(load - 2))
    draft.write(first)
    draft.ask(draft.write(second), source, 1 / (length - 1))
    return draft


def copy(kit: Kit, load: int, length: int, shots: int) -> Draft:
    """Ask for a string of ``load`` tokens or words again."""
    template = "Text: {key}\nCopy: {value}\n\n" if kit.form == "text" else "{key}\n{value}\n\n"
    draft = Draft()
    for _ in range(shots):
        string = kit.string(min(load, 8))
        draft.fill(template, {"key": string, "value": string})
    string = kit.string(load)
    found = draft.fill(template, {"key": string, "value": string})
    draft.ask(found["value"], found["key"], float(load) ** -load)
    return draft


def phonebook(kit: Kit, load: int, length: int, shots: int) -> Draft:
    """Ask for the number of one of ``load`` names."""
    draft, text = Draft(), kit.form == "text"
    keys, values = kit.keys(load), kit.values(load)
    fact = "{key}: {value}\n" if text else "{key}{value}\n"
    told = [draft.fill(fact, {"key": key, "value": value})["value"] for key, value in zip(keys, values, strict=True)]
    _fill_up(draft, kit, "phonebook", length)
    question = "The number of {key} is {value}.\n" if text else fact

    def answered(k: int) -> int:
        return draft.fill(question, {"key": keys[k], "value": values[k]})["value"]

    *shown, k = _permutation(kit, load)[: shots + 1]
    for each in shown:
        answered(each)
    draft.ask(answered(k), told[k], 1 / load, [part for each, part in enumerate(told) if each != k])
    return draft


def overwritten(kit: Kit, load: int, length: int, shots: int) -> Draft:
    """Ask for the last value of a key that was written several times, among ``load`` writes."""
    draft, text = Draft(), kit.form == "text"
    count = max(shots + 1, load // WRITES_PER_KEY)
    keys, values = kit.keys(count, "first"), kit.values(load, 3)
    # Every key once, and the one that is asked for once more at least; the other writes go to any.
    asked_key, *others = _permutation(kit, count)
    more = kit.rng.integers(count, size=load - count - 1).tolist()
    owners = [*range(count), asked_key, *more]
    owners = [owners[k] for k in _permutation(kit, load)]
    fact = "{key} moved to room {value}.\n" if text else "{key}{value}\n"
    told: dict[int, list[int]] = {}
    last: dict[int, Part] = {}
    for owner, value in zip(owners, values, strict=True):
        told.setdefault(owner, []).append(draft.fill(fact, {"key": keys[owner], "value": value})["value"])
        last[owner] = value
    _fill_up(draft, kit, "overwritten", length)
    question = "{key} is now in room {value}.\n" if text else fact

    def answered(k: int) -> int:
        return draft.fill(question, {"key": keys[k], "value": last[k]})["value"]

    for each in others[:shots]:
        answered(each)
    *earlier, source = told[asked_key]
    draft.ask(answered(asked_key), source, 1 / load, earlier)
    return draft


def multi_hop(kit: Kit, load: int, length: int, shots: int) -> Draft:
    """Ask for the end of ``load`` hops along a chain of facts, which are told in random order."""
    draft, text = Draft(), kit.form == "text"
    count, nodes = max(CHAINS, shots + 1), load + 2  # one fact more than hops, so that answers are not chains' ends
    names = kit.keys(count * nodes, "first")
    fact = "{key}'s teacher is {value}.\n" if text else "{key} >{value}\n"
    edges = [(chain, at) for chain in range(count) for at in range(nodes - 1)]
    told: dict[tuple[int, int], int] = {}
    for k in _permutation(kit, len(edges)):
        chain, at = edges[k]
        key, value = names[chain * nodes + at], names[chain * nodes + at + 1]
        told[chain, at] = draft.fill(fact, {"key": key, "value": value})["value"]
    _fill_up(draft, kit, "multi_hop", length)
    question = "The " + "teacher of the " * (load - 1) + "teacher of {key} is {value}.\n"
    question = question if text else "{key} " + ">" * load + "{value}\n"

    def answered(chain: int, start: int) -> int:
        first = chain * nodes + start
        return draft.fill(question, {"key": names[first], "value": names[first + load]})["value"]

    *shown, chain = _permutation(kit, count)[: shots + 1]
    for each in shown:
        answered(each, int(kit.rng.integers(2)))
    start = int(kit.rng.integers(2))
    wrong = [told[chain, at] for at in range(nodes - 1) if at != start + load - 1]
    draft.ask(answered(chain, start), told[chain, start + load - 1], 1 / len(edges), wrong)
    return draft


def brackets(kit: Kit, load: int, length: int, shots: int) -> Draft:
    """Ask for what closes ``load`` open brackets; closed ones lie between them."""
    draft = Draft()

    def answered() -> tuple[int, int]:
        """Write a line of brackets and what closes it; return the number of the last open one, and of the answer."""
        kinds = [PAIRS[k] for k in kit.rng.integers(len(PAIRS), size=load).tolist()]
        draft.write("Open:")
        opened = -1
        for kind in kinds:
            opened = draft.write(f" {kind[0]}")
            if closed := _balanced(kit, int(kit.rng.integers(2))):
                draft.write(closed)
        draft.write("\nClose:")
        answer = draft.write("".join(f" {kind[1]}" for kind in reversed(kinds)))
        draft.write("\n\n")
        return opened, answer

    for _ in range(shots):
        answered()
    opened, answer = answered()
    draft.ask(answer, opened, float(len(PAIRS)) ** -load)
    return draft


TASKS: dict[str, Task] = {
    "induction": Task(
        induction, "period", (8, 32, 128), 2, "random tokens, repeated once", forms=("tokens",), shots=False
    ),
    "lag": Task(
        lag, "lag", (4, 32, 256), 2, "one repeated bigram among random tokens", ("tokens",), fills=True, shots=False
    ),
    "copy": Task(copy, "tokens or words", (8, 32, 128), 1, "a string again"),
    "phonebook": Task(phonebook, "entries", (4, 16, 64), 1, "the value of a key", fills=True),
    "overwritten": Task(overwritten, "writes", (4, 16, 64), 2, "the last value of a key that changed", fills=True),
    "multi_hop": Task(multi_hop, "hops", (1, 2, 3), 1, "the end of a chain of facts", fills=True),
    "brackets": Task(brackets, "open brackets", (2, 4, 8), 1, "what closes the open brackets", forms=("text",)),
}


def check_load(name: str, load: int, shots: int) -> None:
    """Raise `ArgapError` for a load that cannot hold what is asked."""
    task = TASKS[name]
    least = {"phonebook": shots + 1, "overwritten": shots + 2}.get(name, task.least)
    if load < least:
        why = f" with {shots} solved questions before the one scored" if least > task.least else ""
        raise ArgapError(f"`load` {name}={load}: expected at least {least} ({task.load}){why}")


def _fill_up(draft: Draft, kit: Kit, task: str, length: int) -> None:
    """Write filler until facts and filler have the ``length``; none if that is 0."""
    told = kit.count(draft.parts)
    if length:
        _check_room(task, told, length, kit)
        if length > told:
            draft.write(kit.filler(length - told))
            draft.write("\n")
    if kit.form == "text":
        draft.write("\n")


def _check_room(task: str, needed: int, length: int, kit: Kit) -> None:
    if needed > length:
        unit = "words" if kit.form == "text" else "tokens"
        raise ArgapError(f"`length` {length}: the facts of {task} take {needed} {unit}; use more, or less `load`")


def _permutation(kit: Kit, count: int) -> list[int]:
    return kit.rng.permutation(count).tolist()


def _balanced(kit: Kit, pairs: int) -> str:
    """Return a random balanced string of ``pairs`` pairs, a space before each bracket."""
    if pairs == 0:
        return ""
    inside = int(kit.rng.integers(pairs))
    opening, closing = PAIRS[int(kit.rng.integers(len(PAIRS)))]
    return f" {opening}{_balanced(kit, inside)} {closing}{_balanced(kit, pairs - 1 - inside)}"
