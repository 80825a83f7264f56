"""Word lists, and sentences made from templates: "[a|b]" is a choice, "{H}" is filled from the story."""

# ruff: noqa: E501
# A sentence of the text is one line.

import re

GIRLS = """Mia Lily Anna Rosa Ella Nora Ivy Zoe Lucy Emma Ruby Clara Maya Tara Alice Lena Sofia Grace June Amy Sara Kate
Molly Nina Eva Rita Jane Lola Hana Vera""".split()
BOYS = """Tom Ben Max Sam Leo Jack Finn Omar Noah Theo Adam Luke Hugo Eli Ravi Paul Toby Carl Dan Oscar Nick Peter Will
Ali Jonas Felix Marco Ian Kofi Yuri""".split()
PET_NAMES = """Pip Bobo Tilly Rusty Coco Nibbles Daisy Momo Benny Fern Peanut Honey Pepper Dot Biscuit Willow Hazel Bruno
Olive Tito Milo Luna Sunny Waffle Bingo Poppy Ginger Cloud Misty Gus Ziggy Bubbles Rocky Patch Kiki""".split()
ANIMALS = """fox rabbit bear mouse duck owl cat dog frog pig goat hen turtle squirrel hedgehog sheep pony lion monkey
elephant bee crow goose otter badger lamb puppy kitten beaver snail tiger penguin""".split()
ROLES = [
    "dragon",
    "robot",
    "wizard",
    "princess",
    "prince",
    "knight",
    "giant",
    "fairy",
    "pirate",
    "farmer",
    "baker",
    "king",
    "queen",
]
ROLE_GENDER = {"princess": 1, "prince": 0, "fairy": 1, "king": 0, "queen": 1}
TRAITS = "kind brave clever shy curious cheerful quiet gentle playful careful sleepy funny proud busy friendly".split()
SIZES = "little small big tiny tall young".split()
COLORS = "red blue green yellow purple orange white brown pink golden silver black".split()
OBJECTS = """ball kite hat drum boat book bell scarf lamp basket cup box key flute button shell stone ribbon wagon blanket
coat doll spoon map coin crown ring umbrella clock feather""".split()
FOODS = "apple pear cake pie cookie carrot bun sandwich plum peach pancake muffin nut orange banana cupcake".split()
PLACES = [
    ("forest", "in the forest"),
    ("sea", "by the sea"),
    ("hill", "on a green hill"),
    ("farm", "on a farm"),
    ("village", "in a small village"),
    ("river", "near the river"),
    ("garden", "in a big garden"),
    ("castle", "in an old castle"),
    ("city", "in a busy city"),
    ("island", "on a small island"),
    ("mountain", "on a mountain"),
    ("lake", "by the lake"),
    ("meadow", "in the meadow"),
    ("valley", "in a quiet valley"),
    ("jungle", "in the jungle"),
    ("beach", "at the beach"),
]
SPOTS = [
    "under the old oak tree",
    "behind the barn",
    "near the pond",
    "beside the stone wall",
    "in the tall grass",
    "under the bridge",
    "at the top of the hill",
    "next to the mill",
    "in the middle of the field",
    "by the garden gate",
    "under a bush",
    "inside a hollow log",
    "by the well",
]
WEATHER = "sunny windy cold warm rainy snowy bright foggy".split()
GAMES = [
    "play in the grass",
    "sing songs",
    "climb trees",
    "draw pictures",
    "look at the stars",
    "swim in the pond",
    "run in the wind",
    "tell jokes",
    "pick flowers",
    "dig in the sand",
    "watch the clouds",
    "jump over puddles",
    "read books",
    "bake bread",
]
PLURALS = dict(
    mouse="mice",
    goose="geese",
    sheep="sheep",
    berry="berries",
    pony="ponies",
    puppy="puppies",
    fox="foxes",
    box="boxes",
    peach="peaches",
    sandwich="sandwiches",
    child="children",
    foot="feet",
    tooth="teeth",
    man="men",
    leaf="leaves",
    baby="babies",
    fish="fish",
    knife="knives",
    dish="dishes",
    bus="buses",
    fairy="fairies",
    wolf="wolves",
    brush="brushes",
    city="cities",
    party="parties",
    story="stories",
    lady="ladies",
    glass="glasses",
    shelf="shelves",
    woman="women",
)
NUMBERS = "zero one two three four five six seven eight nine ten eleven twelve".split()


def an(word):
    """The word with its article."""
    return ("an " if word[0] in "aeiou" else "a ") + word


def plural(word):
    """The plural of a noun."""
    return PLURALS.get(word, word + "s")


def parse(text):
    """Turn "a [b|c] d" into nested lists: a sequence of strings and choices."""
    stack = [[[]]]
    for part in re.findall(r"[^\[\]|]+|[\[\]|]", text):
        if part == "[":
            stack.append([[]])
        elif part == "]":
            choice = stack.pop()
            stack[-1][-1].append(choice)
        elif part == "|" and len(stack) > 1:
            stack[-1].append([])
        else:
            stack[-1][-1].append(part)
    return stack[0][0]


def expand(r, sequence):
    """One text from a parsed template."""
    return "".join(p if p.__class__ is str else expand(r, p[int(r.random() * len(p))]) for p in sequence)


CACHE = {}
CAPITAL = re.compile(r"(^|[.!?] |\n)([a-z])")


def say(r, template, fields=None):
    """Expand a template, fill its fields and start every sentence with a capital letter."""
    tree = CACHE.get(template)
    if tree is None:
        tree = CACHE[template] = parse(template)
    text = expand(r, tree)
    if fields:
        text = text.format_map(fields)
    return CAPITAL.sub(lambda m: m[1] + m[2].upper(), text)
