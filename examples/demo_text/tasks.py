"""Rows and lists, sums, and answers that are already in the question."""

from .talk import CATEGORIES, DAYS, MONTHS, SEASONS
from .words import ANIMALS, BOYS, COLORS, FOODS, GIRLS, NUMBERS, OBJECTS, PET_NAMES, an, plural, say


def numbers(r):
    """Counting: the answer is a row of numbers, days, months or letters; also the words for it."""
    x = r.random()
    if x < 0.45:
        a = 1 if r.random() < 0.4 else int(r.random() * (20 if r.random() < 0.8 else 80))
        b = a + 3 + int(r.random() * 11)
        return f"from {a} to {b}", [str(i) for i in range(a, b + 1)]
    if x < 0.65:
        a = 5 + int(r.random() * 16)
        b = max(0, a - 3 - int(r.random() * 11))
        return f"down from {a} to {b}", [str(i) for i in range(a, b - 1, -1)]
    if x < 0.9:
        s = r.choice([2, 2, 3, 5, 5, 10])
        n = 4 + int(r.random() * 8)
        return f"by {NUMBERS[s]}s from {s} to {s * n}", [str(s * i) for i in range(1, n + 1)]
    a = 1 + int(r.random() * 3)
    b = a + 3 + int(r.random() * 7)
    b = min(b, 12)
    return f"from {NUMBERS[a]} to {NUMBERS[b]} in words", NUMBERS[a : b + 1]


def list_turn(r):
    """A list on request."""
    x = r.random()
    if x < 0.42:
        words, row = numbers(r)
        return say(r, f"[Count {words}.|Please count {words}.|Can you count {words}?|Count {words}]"), ", ".join(
            row
        ) + "."
    if x < 0.5:
        name, row = r.choice([("days of the week", DAYS), ("months of the year", MONTHS), ("seasons", SEASONS)])
        return say(r, f"[Name the {name}.|What are the {name}?|List the {name}.|Say the {name}.]"), ", ".join(row) + "."
    if x < 0.55:
        n = 4 + int(r.random() * 22)
        return say(r, f"[Say|Write] the first {n} letters of the alphabet."), ", ".join(
            "abcdefghijklmnopqrstuvwxyz"[:n]
        ) + "."
    c = r.choice(list(CATEGORIES))
    n = min(2 + int(r.random() * 7), len(CATEGORIES[c]))
    row = sorted(r.sample(CATEGORIES[c], n), key=CATEGORIES[c].index)  # in one order, so that nothing comes twice
    q = say(r, f"[Name|List|Tell me|Give me|Can you name|Write down] {NUMBERS[n] if r.random() < 0.8 else n} {c}")
    q += "?" if q.startswith("Can") else "."
    if r.random() < 0.5:
        return q, "\n".join(f"{i}. {w}" for i, w in enumerate(row, 1))
    return q, ", ".join(row) + "."


def list_plain(r):
    """Rows without a chat around them."""
    x = r.random()
    if x < 0.6:
        return "\n".join(", ".join(numbers(r)[1]) for _ in range(1 + int(r.random() * 4)))
    if x < 0.7:
        return "\n".join(
            ", ".join(row) for row in r.sample([DAYS, MONTHS, SEASONS, list("abcdefghijklmnopqrstuvwxyz"), NUMBERS], 2)
        )
    if x < 0.85:
        c = r.choice(list(CATEGORIES))
        return f"Some {c}:\n" + "\n".join("- " + w for w in r.sample(CATEGORIES[c], 4))
    row = r.sample(FOODS + CATEGORIES["vegetables"], 3 + int(r.random() * 4))
    return "Shopping list:\n" + "\n".join(
        f"- {n} {w if n == 1 else plural(w)}" for w in row for n in [1 + int(r.random() * 9)]
    )


def calculation(r):
    """A small calculation: the term and its value."""
    x = r.random()
    small = r.random() < 0.7
    if x < 0.55:
        a = int(r.random() * (13 if small else 90))
        b = int(r.random() * (13 if small else 100 - a))
        return f"{a} + {b}", a + b
    if x < 0.85:
        a = int(r.random() * (20 if small else 100))
        b = int(r.random() * (a + 1))
        return f"{a} - {b}", a - b
    a, b = int(r.random() * 11), int(r.random() * 11)
    return f"{a} * {b}", a * b


SIGNS = {"+": "plus", "-": "minus", "*": "times"}


def sum_turn(r):
    """A sum on request, bare or in words."""
    if r.random() < 0.25:
        n, w = r.choice(GIRLS + BOYS), r.choice(FOODS + OBJECTS)
        a, b = 2 + int(r.random() * 18), 1 + int(r.random() * 12)
        f = dict(n=n, a=a, b=b, w=plural(w))
        if r.random() < 0.5 or b >= a:
            return say(
                r, "{n} has {a} {w} and [finds|gets|buys] {b} more. How many {w} does {n} have[ now|]?", f
            ), f"{a} + {b} = {a + b}. {n} has {a + b} {plural(w)}."
        return say(
            r, "{n} has {a} {w} and [loses|gives away|sells] {b}. How many {w} are left?", f
        ), f"{a} - {b} = {a - b}. {n} has {a - b} {plural(w) if a - b != 1 else w}."
    t, v = calculation(r)
    a, s, b = t.split()
    words = t if r.random() < 0.65 else f"{a} {SIGNS[s]} {b}"
    return say(r, f"[What is {words}?|How much is {words}?|Calculate {words}.|{words}|{words} = ?]"), f"{t} = {v}"


def sum_plain(r):
    """Lines of sums."""
    return "\n".join(f"{t} = {v}" for t, v in (calculation(r) for _ in range(2 + int(r.random() * 6))))


# ---------------------------------------------------------------- recall
# Answers that are already in the question.  They teach the model to look back, which names in stories need as well.


def some_words(r, n):
    """Different names and things."""
    return r.sample(
        GIRLS + BOYS if r.random() < 0.4 else GIRLS + BOYS + PET_NAMES + OBJECTS + FOODS + ANIMALS + COLORS, n
    )


def recall_turn(r):
    """Repeat words, or answer a question about what was just said."""
    x = int(r.random() * 10)
    if x < 3:
        row = ", ".join(some_words(r, 2 + int(r.random() * 9)))
        return say(r, f"[Repeat after me|Say|Repeat|Please repeat]: {row}."), row + "."
    if x == 3:
        w, n = some_words(r, 1)[0], 2 + int(r.random() * 5)
        return say(r, f"[Say|Write] {w} {NUMBERS[n]} times."), ", ".join([w] * n) + "."
    if x == 4:
        row = some_words(r, 4 + int(r.random() * 4))
        i = int(r.random() * (len(row) - 1))
        return f"What comes after {row[i]}: {', '.join(row)}?", f"{row[i + 1]} comes after {row[i]}."
    if x == 5:
        row = some_words(r, 3 + int(r.random() * 4))
        return say(r, f"[Make a list|Write a list]: {', '.join(row)}."), "\n".join(
            f"{i}. {w}" for i, w in enumerate(row, 1)
        )
    names, things, colors = r.sample(GIRLS + BOYS + PET_NAMES, 3), r.sample(OBJECTS + FOODS, 3), r.sample(COLORS, 3)
    i = int(r.random() * 3)
    if x == 6:
        have = " ".join(f"{n} has {an(t)}." for n, t in zip(names, things))
        if r.random() < 0.5:
            return f"{have} Who has the {things[i]}?", f"{names[i]} has the {things[i]}."
        return f"{have} What does {names[i]} have?", f"{names[i]} has {an(things[i])}."
    if x == 7:
        have = ", ".join(f"{an(c)} {t}" for c, t in zip(colors, things))
        return f"I have {have}. What color is the {things[i]}?", f"The {things[i]} is {colors[i]}."
    if x == 8:
        return say(
            r, f"[My friends are|I know] {names[0]}, {names[1]} and {names[2]}. [Who are my friends|Who do I know]?"
        ), f"{names[0]}, {names[1]} and {names[2]}."
    return say(
        r, f"My name is {names[0]} and I have {an(things[0])}. [What is my name|Do you know my name]?"
    ), f"Your name is {names[0]}."


def recall_plain(r):
    """A row of words, written several times."""
    row = ", ".join(some_words(r, 3 + int(r.random() * 12)))
    return "\n".join([row] * (2 + int(r.random() * 2)))
