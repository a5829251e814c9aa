"""Synthetic rows, the same everywhere: the fixture, for tests and a first try, and needles in texts of any length.

The fixture's rows are about products, devices and towns. They have the form of SWDE, FDA and SQuAD, but their scores
are not comparable with those benchmarks. Golds are made-up names and numbers, which no model knows from training.

A needle is a sentence with a number among sentences about nothing in particular. That is the idea of RULER's needle
tasks (arXiv 2404.06654), not their data: lengths are in words and not in a model's tokens, so every model reads the
same texts; the sentences are made here and not taken from essays; and three more needles lie in each text.
"""

import random

ROWS = 20
QUESTIONS_PER_DOCUMENT = 4
LENGTHS = (128, 256, 512)
"""Words of the texts around needles, by default."""
SHORTEST, LONGEST = 64, 10**6
DEPTHS = (0, 25, 50, 75, 100)
"""Percent of a text's sentences that come before its needle."""
PER_DEPTH = 4
OTHERS = 3
"""Needles in each text that are not asked for."""
SYLLABLES = ("ba", "cor", "del", "fi", "gan", "hu", "jo", "kal", "lem", "mi", "nor", "pe", "ru", "sti", "tav", "zen")


def fixture_rows(task: str, *, rows: int = ROWS, seed: int = 0) -> list[dict[str, str]]:
    """Generate rows ``doc_id, file_name, key, value, text`` in the form of ``swde``, ``fda`` or ``squad``.

    They depend only on the seed.
    """
    draw = random.Random(f"{task} {seed}")
    make = {"swde": _page, "fda": _device, "squad": _article}[task]
    made: list[dict[str, str]] = []
    while len(made) < rows:
        name, text, questions = make(draw)
        for key, query, value in draw.sample(questions, QUESTIONS_PER_DOCUMENT):
            row = {"doc_id": f"{task}-{len(made)}", "file_name": name, "key": key, "value": value}
            made.append({**row, "text": f"{text}\n{query}"})
    return made[:rows]


Question = tuple[str, str, str]
"""Key, query, gold."""


def needle_rows(lengths: tuple[int, ...]) -> list[dict[str, str]]:
    """Generate rows ``doc_id, key, value, text``: `PER_DEPTH` texts for each length (words) and depth.

    The key says both, so that scores by key are scores by length and depth. The rows are always the same.
    """
    made = []
    for length in lengths:
        for depth in DEPTHS:
            for k in range(PER_DEPTH):
                draw = random.Random(f"needle {length} {depth} {k} 0")
                text, name, value = _haystack(draw, length, depth)
                key = f"{length} words, depth {depth}%"
                row = {"doc_id": f"needle-{length}-{depth}-{k}", "key": key, "value": value}
                made.append({**row, "text": f"{text}\nThe locker code of {name} is:"})
    return made


def _haystack(draw: random.Random, length: int, depth: int) -> tuple[str, str, str]:
    """Draw a text of at most ``length`` words with its needles; return it with the name and number asked for."""
    names = [f"{_word(draw).capitalize()} {_word(draw).capitalize()}" for _ in range(OTHERS + 1)]
    codes = [str(code) for code in draw.sample(range(10**6, 10**7), OTHERS + 1)]
    needles = [f"The locker code of {name} is: {code}." for name, code in zip(names, codes, strict=True)]
    left = length - sum(len(needle.split()) for needle in needles)
    sentences: list[str] = []
    while (words := len((sentence := _sentence(draw)).split())) <= left:
        sentences.append(sentence)
        left -= words
    for needle in needles[1:]:
        sentences.insert(draw.randint(0, len(sentences)), needle)
    sentences.insert(round(depth / 100 * len(sentences)), needles[0])
    return " ".join(sentences), names[0], codes[0]


def _sentence(draw: random.Random) -> str:
    who = draw.choice(("The baker", "A sailor", "The teacher", "An old gardener", "The postman", "A young clerk"))
    did = draw.choice(("walked slowly to", "looked for a friend at", "waited near", "sat down beside", "hurried past"))
    where = draw.choice(("the harbour", "the town hall", "the old mill", "the station", "the market", "the north gate"))
    when = draw.choice(("before sunrise", "in the afternoon", "after the rain", "on a quiet day", "late in the year"))
    return f"{who} {did} {where} {when}."


def _page(draw: random.Random) -> tuple[str, str, list[Question]]:
    """Draw a product page with one line per property."""
    name = _word(draw).capitalize()
    properties = {
        "maker": f"{_word(draw).capitalize()} Works",
        "colour": draw.choice(("slate", "amber", "moss", "copper", "ivory")),
        "weight": f"{draw.randint(100, 999)} g",
        "model code": _code(draw),
        "country of origin": f"{_word(draw).capitalize()}land",
        "warranty": f"{draw.randint(13, 59)} months",
    }
    lines = [f"{name} | The Lantern Catalogue", f"In stock: {draw.randint(10, 99)} pieces"]
    lines += [f"{key}: {value}" for key, value in properties.items()]
    lines += [f"Customers also looked at {_word(draw).capitalize()} and {_word(draw).capitalize()}."]
    return name, "\n".join(lines), [(key, f"{key}:", value) for key, value in properties.items()]


def _device(draw: random.Random) -> tuple[str, str, list[Question]]:
    """Draw a notice about a device: lettered items in running text."""
    name = f"{_word(draw).capitalize()} {_word(draw).capitalize()} Meter"
    items = {
        "notice number": _code(draw),
        "device name": name,
        "applicant": f"{_word(draw).capitalize()} Instruments",
        "measured quantity": f"{_word(draw)} concentration",
        "kind of test": f"quantitative, by {_word(draw)} sensor",
        "panel": f"{_word(draw).capitalize()} ({draw.randint(11, 98)})",
    }
    numbered = zip("ABCDEF", items.items(), strict=True)
    parts = [f"{letter}. {key.capitalize()}: {value}" for letter, (key, value) in numbered]
    closing = f"G. Storage: keep between {draw.randint(2, 5)} and {draw.randint(20, 30)} degrees."
    text = " ".join(["NOTICE ON A DEVICE", *parts, closing])
    return f"{items['notice number']}.txt", text, [(k, f"{k.capitalize()}:", v) for k, v in items.items()]


def _article(draw: random.Random) -> tuple[str, str, list[Question]]:
    """Draw a paragraph about a town, with questions."""
    town, founder, river = (_word(draw).capitalize() for _ in range(3))
    year, people, craft = str(draw.randint(1200, 1899)), f"{draw.randint(1000, 9999):,}", f"{_word(draw)} weaving"
    text = (
        f"{town} is a town on the river {river}. It was founded in {year} by {founder}, a miller, and has "
        f"{people} inhabitants today. The town is known for its {craft}, which is shown at a fair each autumn."
    )
    asked = {
        f"On which river does {town} lie?": river,
        f"When was {town} founded?": year,
        f"Who founded {town}?": founder,
        f"How many inhabitants has {town}?": people,
        f"What is {town} known for?": craft,
    }
    return town, text, [("answer", f"Question: {question}\nAnswer:", value) for question, value in asked.items()]


def _word(draw: random.Random) -> str:
    return "".join(draw.sample(SYLLABLES, draw.randint(2, 3)))


def _code(draw: random.Random) -> str:
    return f"{draw.choice('KLMPQRT')}{draw.randint(100_000, 999_999)}"
