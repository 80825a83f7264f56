"""What the demo model is asked, and how an answer is judged. Every question is drawn from a seed of its own."""

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from demo_text import documents, talk, words
from demo_text import tasks as made
from demo_text.code import code_turn

from . import data

Judge = Callable[[str], bool]


@dataclass(frozen=True)
class Task:
    """One question, its group in the table, and whether an answer to it is right."""

    group: str
    question: str
    right: Judge
    # of a story: is what was asked for besides the hero in it?
    topic: Judge | None = None


def said(text: str) -> str:
    """A text without blanks around it and its final full stop."""
    return text.strip().removesuffix(".")


def exactly(answer: str) -> Judge:
    """The answer word by word."""
    return lambda text: said(text) == said(answer)


def last_number(value: int) -> Judge:
    """The last number of the text is this one."""
    return lambda text: re.findall(r"-?\d+", text)[-1:] == [str(value)]


def holds_hero(hero: str, friend: str = "") -> Judge:
    """The hero is the first who is named, is named again, once at least in the second half, and nobody replaces them.

    Besides the hero one other name is allowed: the friend that every plot has, the one asked for if there was one.
    """

    def right(text: str) -> bool:
        names = data.names_in(text)
        others = set(names) - {hero}
        late = data.names_in(text[len(text) // 2 :])
        return (
            names[:1] == [hero]
            and names.count(hero) >= 2
            and hero in late
            and len(others) <= 1
            and (not friend or others == {friend})
        )

    return right


def mentions(word: str) -> Judge:
    """The word is in the text, whole and with any capitals."""
    return lambda text: bool(re.search(rf"\b{re.escape(word)}\b", text, re.IGNORECASE))


def stories(r: random.Random, count: int) -> Iterator[Task]:
    """Requests for a story about a hero and a thing, a place, a friend or a feeling, in the forms in turn."""
    for i in range(count):
        kid, pet = r.choice(words.GIRLS + words.BOYS), r.choice(words.PET_NAMES)
        animal, thing, color = r.choice(words.ANIMALS), r.choice(words.OBJECTS), r.choice(words.COLORS)
        place, at = r.choice(words.PLACES)
        a_thing = words.an(f"{color} {thing}")
        hero, about, judge, friend = (
            (kid, f"{kid} and {a_thing}", mentions(thing), ""),
            (pet, f"{words.an(animal)} named {pet} {at}", mentions(place), ""),
            (pet, f"{pet} the {animal} and {a_thing}", mentions(thing), ""),
            (kid, f"{kid} and {pet} the {animal}", mentions(animal), pet),
            (kid, f"{kid} {at}", mentions(place), ""),
        )[i % 5]
        opening = r.choice(("Tell me a story about", "Please write a short story about", "I want a story about"))
        yield Task("story", f"{opening} {about}.", holds_hero(hero, friend), judge)


def sums(r: random.Random, count: int) -> Iterator[Task]:
    """Sums in signs, `count` of every sign, and the same number in words."""
    for sign, name in (("+", "plus"), ("-", "minus"), ("*", "times")):
        found = 0
        while found < count:
            term, value = made.calculation(r)
            if f" {sign} " in term:
                found += 1
                yield Task(f"sum {name}", f"What is {term}?", last_number(value))
    for _ in range(count):
        name, thing = r.choice(words.GIRLS + words.BOYS), words.plural(r.choice(words.FOODS + words.OBJECTS))
        a, b = r.randint(2, 19), r.randint(1, 12)
        question = f"{name} has {a} {thing} and finds {b} more. How many {thing} does {name} have now?"
        yield Task("sum in words", question, last_number(a + b))


def lists(r: random.Random, count: int) -> Iterator[Task]:
    """Counting, and lists of so many things of a kind."""
    for _ in range(count):
        what, row = made.numbers(r)
        yield Task("counting", f"Count {what}.", exactly(", ".join(row)))
    for _ in range(count):
        name = r.choice(list(talk.CATEGORIES))
        wanted = r.randint(2, min(8, len(talk.CATEGORIES[name])))
        yield Task("list", f"Name {words.NUMBERS[wanted]} {name}.", is_list(wanted, talk.CATEGORIES[name]))


def is_list(wanted: int, known: list[str]) -> Judge:
    """So many different things, all of the kind."""

    def right(text: str) -> bool:
        row = [re.sub(r"^\d+\. ", "", word) for word in re.split(r", |\n", said(text))]
        return len(row) == len(set(row)) == wanted and set(row) <= set(known)

    return right


def facts(r: random.Random, count: int) -> Iterator[Task]:
    """Facts of the training text; a rhyme may be any that the text knows."""
    for _ in range(count):
        question, answer = talk.fact(r)
        rhyme = re.fullmatch(r"\w+ rhymes with (\w+)\.", answer)
        yield Task("fact", question, rhymes_with(rhyme[1]) if rhyme else exactly(answer))


def rhymes_with(word: str) -> Judge:
    """Any other word of a row that has this word."""
    rows = [row.split() for row in talk.RHYMES if word in row.split()]
    answers = {f"{other.capitalize()} rhymes with {word}" for row in rows for other in row if other != word}
    return lambda text: said(text) in answers


def recalls(r: random.Random, count: int) -> Iterator[Task]:
    """Questions whose answer is in the question."""
    for _ in range(count):
        question, answer = made.recall_turn(r)
        yield Task("recall", question, exactly(answer))


def code(r: random.Random, count: int) -> Iterator[Task]:
    """Small functions: does the block compile, and is it a function?"""
    for _ in range(count):
        yield Task("code", code_turn(r)[0], compiles)


def compiles(text: str) -> bool:
    """There is one block of Python, it defines a function and compiles."""
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    try:
        return len(blocks) == 1 and bool(compile(blocks[0], "answer", "exec")) and blocks[0].startswith("def ")
    except SyntaxError:
        return False


def all_tasks(seed: str, story_count: int = 20, count: int = 30) -> list[Task]:
    """Every task of an evaluation, the same for the same seed."""
    makers = (stories, sums, lists, facts, recalls, code)
    return [
        task
        for make in makers
        for task in make(random.Random(f"{seed} {make.__name__}"), story_count if make is stories else count)
    ]


def training_questions(blocks: int, seed: int = 0, count: int = 4000) -> set[str]:
    """Every user turn in so many blocks of training text, of whichever phase."""
    found: set[str] = set()
    for number in range(blocks):
        for column in (1, 2, 3):
            r = random.Random(f"{seed} {number}")  # as `data.block` draws it
            for _ in range(count):
                text = documents.document(r, column)[1]
                found.update(re.findall(r"<\|im_start\|>user\n(.*?)<\|im_end\|>", text, re.DOTALL))
    return found
