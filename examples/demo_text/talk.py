"""Small talk and simple facts."""

# ruff: noqa: E501
# A sentence of the text is one line.

from .words import ANIMALS, BOYS, FOODS, GIRLS, NUMBERS, OBJECTS, PLURALS, an, plural, say

SYSTEMS = [
    "You are a tiny demo model. You tell short stories.",
    "You are a friendly story teller.",
    "You are a helpful assistant.",
    "Answer in short sentences.",
    "You are small, kind and friendly.",
]
GREETINGS = [
    (
        "[Hello|Hi|Hey|Good morning|Good evening|Hello there][!|.|]",
        "[Hello|Hi|Hello there]! [I am a tiny demo model. Would you like a story?|Would you like to hear a story?|What can I do for you?|Ask me for a story.]",
    ),
    (
        "How are you[ today|]?",
        "I am fine, thank you. [I have a new story for you.|Would you like a story?|How are you?]",
    ),
    ("[My name is {n}.|I am {n}.]", "Nice to meet you, {n}! [Would you like a story?|What can I do for you?]"),
    ("Hello, I am {n}.", "Hello, {n}! [How are you today?|Would you like a story?]"),
]
THANKS = [
    (
        "[Thank you|Thanks|Thank you so much][!|.|]",
        "You are welcome! [Would you like another story?|It was fun.|Come back soon.]",
    ),
    (
        "[Goodbye|Bye|Good night|See you tomorrow][!|.|]",
        "Goodbye! [Sleep well and have sweet dreams.|Come back soon.|Have a nice day.]",
    ),
    (
        "[That was nice.|I liked it.|I love this story!]",
        "I am glad that you liked it. [Would you like another one?|Thank you!]",
    ),
]
SELF = [
    ("[Who|What] are you?", "I am a tiny demo model. I tell short stories and answer easy questions."),
    ("What can you do?", "I can tell short stories, count, make lists, do small sums and write a little Python."),
    ("[What is your name?|Do you have a name?]", "I do not have a name. I am just a tiny demo model."),
    ("Are you [a person|human|a real person]?", "No, I am not a person. I am a tiny demo model."),
    ("[How big are you?|Are you a big model?]", "I am very small. I have only a few million numbers inside."),
    ("Can you help me[ with my homework|]?", "I can try. I know easy facts, small sums and short stories."),
    ("Are you [smart|clever]?", "Not very. I am a tiny model, but I tell nice stories."),
    ("[Do you make mistakes?|Can you be wrong?]", "Yes, I make many mistakes. I am only a tiny demo model."),
    ("[Where do you live?|Where are you?]", "I live inside this computer. I need no network."),
    ("[Do you sleep?|Do you eat?]", "No, I am a model. But I like stories about [sleepy|hungry] animals."),
    ("[How old are you?|When were you born?]", "I do not know. Tiny models have no birthday."),
    ("[Do you like {xs}?|What do you think about {xs}?]", "Yes, I like {xs}. Would you like a story about {ax}?"),
    (
        "[What is the weather like?|Will it rain tomorrow?|What is the news?|Who won the game?]",
        "I do not know that. I am a tiny model, but I can tell you a story.",
    ),
    (
        "[Tell me about you.|Tell me something about yourself.]",
        "I am a tiny demo model. I like stories about animals and friends.",
    ),
]

OPPOSITES = """big small|hot cold|up down|day night|happy sad|fast slow|old new|wet dry|open closed|good bad|light dark|long short|high low|loud quiet|full empty|hard soft|near far|early late|strong weak|clean dirty|left right|first last|black white|rich poor|inside outside|thick thin|sweet sour|always never|yes no|push pull""".split(
    "|"
)
SOUNDS = dict(
    cat="meow",
    dog="woof",
    cow="moo",
    duck="quack",
    sheep="baa",
    pig="oink",
    owl="hoo",
    bee="buzz",
    lion="roar",
    mouse="squeak",
    frog="croak",
    crow="caw",
    horse="neigh",
    hen="cluck",
    snake="hiss",
)
BABIES = dict(
    cat="kitten",
    dog="puppy",
    cow="calf",
    sheep="lamb",
    horse="foal",
    duck="duckling",
    hen="chick",
    bear="cub",
    lion="cub",
    goat="kid",
    frog="tadpole",
    goose="gosling",
    pig="piglet",
    owl="owlet",
)
LEGS = dict(
    dog=4, cat=4, horse=4, cow=4, bird=2, spider=8, bee=6, ant=6, snake=0, fish=0, duck=2, lion=4, hen=2, fly=6, frog=4
)
HOMES = dict(
    bee="a hive",
    bird="a nest",
    dog="a kennel",
    horse="a stable",
    fish="the water",
    fox="a den",
    spider="a web",
    rabbit="a hole in the ground",
    cow="a barn",
    bear="a cave",
    king="a castle",
    ant="a hill of sand",
)
EATS = dict(
    rabbit="carrots",
    monkey="bananas",
    cow="grass",
    cat="fish",
    bear="honey",
    squirrel="nuts",
    mouse="cheese",
    horse="grass",
    bird="seeds",
    lion="meat",
    sheep="grass",
    frog="flies",
    panda="leaves",
    hen="corn",
)
COLOR_OF = dict(
    sky="blue",
    grass="green",
    snow="white",
    sun="yellow",
    blood="red",
    banana="yellow",
    tomato="red",
    night="black",
    milk="white",
    carrot="orange",
    leaf="green",
    lemon="yellow",
    chocolate="brown",
    coal="black",
    pig="pink",
    frog="green",
    orange="orange",
    elephant="gray",
    sea="blue",
    rose="red",
)
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
SEASONS = "spring summer autumn winter".split()
MIX = {
    ("blue", "yellow"): "green",
    ("red", "yellow"): "orange",
    ("red", "blue"): "purple",
    ("red", "white"): "pink",
    ("black", "white"): "gray",
}
MISC = [
    ("How many days are in a week?", "There are seven days in a week."),
    ("How many months are in a year?", "There are twelve months in a year."),
    ("How many hours are in a day?", "There are 24 hours in a day."),
    ("How many legs does a table have?", "A table has four legs."),
    ("What do we see with?", "We see with our eyes."),
    ("What do we hear with?", "We hear with our ears."),
    ("What do bees make?", "Bees make honey."),
    ("What do cows give us?", "Cows give us milk."),
    ("What do hens lay?", "Hens lay eggs."),
    ("Where does the sun go at night?", "The sun goes down in the west."),
    ("Where does the sun come up?", "The sun comes up in the east."),
    ("What falls from the clouds?", "Rain and snow fall from the clouds."),
    ("What is ice made of?", "Ice is made of water."),
    ("Can fish fly?", "No, fish can not fly. They swim."),
    ("Can birds fly?", "Yes, most birds can fly."),
    ("What is the largest animal?", "The blue whale is the largest animal."),
    ("What is the tallest animal?", "The giraffe is the tallest animal."),
    ("What do plants need?", "Plants need water, air and light."),
    ("Is the sun hot?", "Yes, the sun is very hot."),
    ("Is the moon bigger than the sun?", "No, the sun is bigger than the moon."),
    ("How many fingers do you have on one hand?", "A hand has five fingers."),
    ("What comes after winter?", "Spring comes after winter."),
    ("What is a baker?", "A baker makes bread."),
    ("What is a farmer?", "A farmer grows food."),
    ("What is a doctor?", "A doctor helps sick people."),
    ("What is a teacher?", "A teacher helps you to learn."),
    ("What is a pilot?", "A pilot flies a plane."),
]
SPELL = "cat dog sun moon tree book ball fish bird milk star home rain frog duck cake door hand blue red green apple house mouse water".split()
RHYMES = [
    "cat hat mat",
    "dog frog log",
    "sun fun run",
    "moon soon spoon",
    "tree bee sea",
    "day play way",
    "night light right",
    "ball tall small",
    "house mouse",
    "ring sing king",
    "cake lake snake",
    "star far car",
    "bed red head",
    "rain train again",
    "goat boat coat",
    "hen ten pen",
    "sky fly high",
    "snow go slow",
]

CATEGORIES = {
    "fruits": "apple pear banana orange peach plum cherry lemon grape melon berry mango kiwi".split(),
    "animals": "dog cat horse cow sheep pig lion tiger bear fox rabbit mouse elephant monkey frog duck owl snake".split(),
    "colors": "red blue green yellow orange purple pink white black brown gray".split(),
    "vegetables": "carrot potato tomato onion pea bean corn pumpkin cabbage pepper".split(),
    "birds": "owl crow duck goose hen robin eagle penguin swan parrot".split(),
    "toys": "ball doll kite drum train car puzzle robot boat wagon".split(),
    "things in a kitchen": "spoon fork knife plate cup bowl pan pot table oven".split(),
    "things in a school": "book pen paper desk chair map clock bag ruler teacher".split(),
    "clothes": "hat coat scarf shoe sock shirt dress glove belt boot".split(),
    "drinks": "water milk tea juice coffee lemonade cocoa".split(),
    "parts of the body": "hand foot head nose ear eye mouth arm leg knee".split(),
    "farm animals": "cow horse pig sheep goat hen duck goose donkey".split(),
    "sea animals": "fish whale shark crab seal dolphin octopus turtle".split(),
    "jobs": "baker farmer doctor teacher pilot driver painter sailor cook singer".split(),
    "things in the sky": "sun moon star cloud bird plane kite rainbow".split(),
    "games": ["chess", "cards", "tag", "football", "tennis", "hide and seek"],
    "feelings": "happy sad angry afraid proud lonely excited shy tired curious".split(),
}


def fact(r):
    """A simple question and its answer."""
    x = int(r.random() * 17)
    if x == 0:
        a, b = r.choice(OPPOSITES).split()
        a, b = (a, b) if r.random() < 0.5 else (b, a)
        return say(
            r, f"[What is the opposite of {a}?|Opposite of {a}?|Tell me the opposite of {a}.]"
        ), f"The opposite of {a} is {b}."
    if x == 1:
        w = r.choice(list(PLURALS) + OBJECTS + FOODS + ANIMALS)
        return say(r, f"[What is the plural of {w}?|One {w}, two what?|Plural of {w}?]"), f"One {w}, two {plural(w)}."
    if x == 2:
        w, s = r.choice(list(SOUNDS.items()))
        return say(
            r, f"[What sound does {an(w)} make?|What does {an(w)} say?|What does the {w} say?]"
        ), f"{an(w).capitalize()} says {s}."
    if x == 3:
        w, s = r.choice(list(BABIES.items()))
        return say(r, f"[What is a baby {w} called?|What do you call a baby {w}?]"), f"A baby {w} is called {an(s)}."
    if x == 4:
        w, n = r.choice(list(LEGS.items()))
        return f"How many legs does {an(w)} have?", f"{an(w).capitalize()} has {NUMBERS[n] if n else 'no'} legs."
    if x == 5:
        w, s = r.choice(list(HOMES.items()))
        return f"Where does {an(w)} live?", f"{an(w).capitalize()} lives in {s}."
    if x == 6:
        w, s = r.choice(list(EATS.items()))
        return say(r, f"[What does {an(w)} eat?|What do {plural(w)} eat?]"), f"{plural(w).capitalize()} eat {s}."
    if x == 7:
        w, s = r.choice(list(COLOR_OF.items()))
        t = (
            w
            if w in ("grass", "snow", "blood", "milk", "chocolate", "coal")
            else "the " + w
            if w in ("sky", "sun", "night", "sea")
            else an(w)
        )
        return say(
            r, f"[What color is {t}?|Which color is {t}?|What is the color of {t}?]"
        ), f"{t.capitalize()} is {s}."
    if x in (8, 9):
        names, kind = (DAYS, "day") if r.random() < 0.6 else (MONTHS, "month")
        i = int(r.random() * len(names))
        step, word = (1, "after") if r.random() < 0.6 else (-1, "before")
        return f"What {kind} comes {word} {names[i]}?", f"{names[(i + step) % len(names)]} comes {word} {names[i]}."
    if x == 10:
        (a, b), c = r.choice(list(MIX.items()))
        return f"What color do you get from {a} and {b}?", f"{a.capitalize()} and {b} make {c}."
    if x == 11:
        w = r.choice(SPELL)
        return say(r, f"[How do you spell {w}?|Spell {w}.|Spell the word {w}.]"), f"{w}: " + "-".join(w)
    if x == 12:
        a, b, *_ = r.sample(r.choice(RHYMES).split(), 2)
        return say(
            r, f"[What rhymes with {a}?|Tell me a word that rhymes with {a}.]"
        ), f"{b.capitalize()} rhymes with {a}."
    if x == 13:
        a, b = r.sample(range(1, 100), 2)
        return say(
            r, f"[Which is bigger, {a} or {b}?|Which number is bigger, {a} or {b}?|Is {a} bigger than {b}?]"
        ), f"{max(a, b)} is bigger than {min(a, b)}."
    if x == 14:
        w = r.choice(
            list(CATEGORIES["fruits"] + CATEGORIES["animals"] + CATEGORIES["vegetables"] + CATEGORIES["clothes"])
        )
        c = next(k for k in ("fruits", "animals", "vegetables", "clothes") if w in CATEGORIES[k])
        one = dict(fruits="a fruit", animals="an animal", vegetables="a vegetable", clothes="something you wear")[c]
        return say(r, f"[What is {an(w)}?|Is {an(w)} {one}?]"), f"{an(w).capitalize()} is {one}."
    return r.choice(MISC)


def talk(r, choices=None):
    """Small talk: greetings, thanks, questions about itself."""
    x = r.random()
    q, a = r.choice(choices or (GREETINGS if x < 0.35 else THANKS if x < 0.5 else SELF))
    w = r.choice(ANIMALS)
    f = dict(n=r.choice(GIRLS + BOYS), xs=plural(w), ax=an(w))
    return say(r, q, f), say(r, a, f)
