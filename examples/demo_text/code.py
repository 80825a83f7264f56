"""Small Python functions; the values of the examples are computed here."""

# ruff: noqa: E501
# A sentence of the text is one line.

from .talk import SPELL
from .words import BOYS, GIRLS, say

# name choices, arguments, body, what it does, example arguments; the example's value is computed here.

CODE = [
    ("add sum_two plus", "a b", "return {0} + {1}", "adds two numbers", "nn"),
    ("subtract minus difference", "a b", "return {0} - {1}", "subtracts two numbers", "nn"),
    ("multiply times product", "a b", "return {0} * {1}", "multiplies two numbers", "nn"),
    ("square", "n", "return {0} * {0}", "squares a number", "n"),
    ("double twice", "n", "return 2 * {0}", "doubles a number", "n"),
    ("is_even even", "n", "return {0} % 2 == 0", "checks if a number is even", "n"),
    ("is_odd odd", "n", "return {0} % 2 == 1", "checks if a number is odd", "n"),
    (
        "largest bigger max_of_two",
        "a b",
        "if {0} > {1}:\n        return {0}\n    return {1}",
        "returns the larger of two numbers",
        "nn",
    ),
    (
        "smallest smaller min_of_two",
        "a b",
        "if {0} < {1}:\n        return {0}\n    return {1}",
        "returns the smaller of two numbers",
        "nn",
    ),
    (
        "total sum_list add_all",
        "numbers",
        "result = 0\n    for n in {0}:\n        result = result + n\n    return result",
        "adds all numbers in a list",
        "l",
    ),
    (
        "count_items length",
        "items",
        "count = 0\n    for item in {0}:\n        count = count + 1\n    return count",
        "counts the items in a list",
        "l",
    ),
    (
        "find_max biggest",
        "numbers",
        "best = {0}[0]\n    for n in {0}:\n        if n > best:\n            best = n\n    return best",
        "finds the largest number in a list",
        "l",
    ),
    (
        "factorial",
        "n",
        "result = 1\n    for i in range(1, {0} + 1):\n        result = result * i\n    return result",
        "computes the factorial of a number",
        "s",
    ),
    ("reverse backwards", "text", "return {0}[::-1]", "reverses a text", "w"),
    ("greet say_hello hello", "name", 'return "Hello, " + {0} + "!"', "greets a person", "p"),
    ("first_letter first", "word", "return {0}[0]", "returns the first letter of a word", "w"),
    ("double_all", "numbers", "return [2 * n for n in {0}]", "doubles all numbers in a list", "l"),
    ("only_even even_numbers", "numbers", "return [n for n in {0} if n % 2 == 0]", "keeps only the even numbers", "l"),
    ("average mean", "numbers", "return sum({0}) / len({0})", "computes the average of a list", "l"),
    (
        "absolute distance_to_zero",
        "n",
        "if {0} < 0:\n        return -{0}\n    return {0}",
        "returns the absolute value of a number",
        "n",
    ),
    ("count_down", "n", "while {0} > 0:\n        print({0})\n        {0} = {0} - 1", "counts down from a number", ""),
    ("count_to", "n", "for i in range(1, {0} + 1):\n        print(i)", "counts up to a number", ""),
]
ARGUMENTS = dict(
    a="a a x left first",
    b="b b y right second",
    n="n n x number value",
    numbers="numbers numbers values items",
    items="items items things",
    text="text text word",
    name="name name person",
    word="word word text",
)


def function(r, item=None):
    """A function, what it does, and an example call with its value (or None)."""
    names, args, body, what, kinds = item or r.choice(CODE)
    name = r.choice(names.split())
    i = int(r.random() * 5)
    chosen = [(ARGUMENTS[a].split() * 5)[i] for a in args.split()]
    code = f"def {name}({', '.join(chosen)}):\n    " + body.format(*chosen) + "\n"
    if not kinds:
        return code, what, None
    make = dict(
        n=lambda: int(r.random() * 20),
        s=lambda: 1 + int(r.random() * 5),
        l=lambda: [int(r.random() * 10) for _ in range(3)],
        w=lambda: r.choice(SPELL),
        p=lambda: r.choice(GIRLS + BOYS),
    )
    values = [make[k]() for k in kinds]
    space = {}
    exec(code, space)
    call = f"{name}({', '.join(repr(v) if not isinstance(v, str) else chr(34) + v + chr(34) for v in values)})"
    return code, what, (call, space[name](*values))


def code_turn(r):
    """A small function on request."""
    code, what, example = function(r)
    q = say(
        r,
        f"[Write a Python function that {what}.|Write a function that {what}.|Can you write a Python function that {what}?|Python function that {what}, please.|Show me a function that {what}.]",
    )
    a = say(r, "[Here is the function:\n|Sure! Here it is:\n||]") + "```python\n" + code + "```"
    if example and r.random() < 0.4:
        a += f"\n{example[0]} gives {example[1]}."
    return q, a


def code_plain(r):
    """A small Python file."""
    out = []
    for item in r.sample(CODE, 1 + int(r.random() * 3)):
        code, what, example = function(r, item)
        if r.random() < 0.25:
            head, rest = code.split("\n", 1)
            code = f'{head}\n    """{what.capitalize()}."""\n{rest}'
        elif r.random() < 0.3:
            code = f"# {what}\n{code}"
        if example and r.random() < 0.6:
            code += f"\n\nprint({example[0]})  # {example[1]}\n"
        out.append(code)
    return "\n\n".join(out)
