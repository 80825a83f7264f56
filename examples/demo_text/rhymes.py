"""Rhymes and letters."""

# ruff: noqa: E501
# A sentence of the text is one line.

from .talk import DAYS
from .words import ANIMALS, BOYS, COLORS, FOODS, GAMES, GIRLS, OBJECTS, PLACES, WEATHER, an, say

COUPLETS = {
    "a cat": [
        "The little cat / sat on the mat.",
        "A cat in a hat / was not very fat.",
        "My cat is [gray|black|white], / and she likes to play.",
        "She sleeps all day / in the soft dry hay.",
    ],
    "the moon": [
        "The moon is [white|bright], / it shines all night.",
        "O round old moon, / come back here soon.",
        "The moon and the star / are very far.",
        "I see the moon / in my silver spoon.",
    ],
    "a frog": [
        "A small green frog / sat on a log.",
        "The frog said hop, / and would not stop.",
        "He jumped so high, / up to the sky.",
        "The frog in the fog / had lost his log.",
    ],
    "the rain": [
        "The rain falls down / on field and town.",
        "Drip, drop, the rain / is here again.",
        "I like the sound / on the dry ground.",
        "The clouds are [gray|low], / and off they go.",
    ],
    "a bee": [
        "A busy bee / lives in our tree.",
        "Buzz, said the bee, / come and fly with me.",
        "She makes us honey / when it is sunny.",
        "The bee is small, / but she helps us all.",
    ],
    "the sun": [
        "The sun is up, / I fill my cup.",
        "The sun is fun / for everyone.",
        "It warms the sea, / and you and me.",
        "When day is done, / good night, dear sun.",
    ],
    "a boat": [
        "A boat with a goat / began to float.",
        "The boat went far / to see a star.",
        "The wind was [strong|slow], / and off we go.",
        "We sang a song / the whole day long.",
    ],
    "bedtime": [
        "Now go to bed / and rest your head.",
        "Turn off the light / and say good night.",
        "The stars will keep / you safe in sleep.",
        "The day is done, / we had much fun.",
    ],
    "a mouse": [
        "A tiny mouse / ran through the house.",
        "The mouse said please, / I want some cheese.",
        "He found a bell / and rang it well.",
        "He runs at night / without a light.",
    ],
    "a friend": [
        "A friend is [near|here], / so have no fear.",
        "We laugh and play / the whole long day.",
        "My friend and I / look at the sky.",
        "You hold my hand / in the warm sand.",
    ],
    "the snow": [
        "The snow falls slow / on all below.",
        "White is the hill, / and all is still.",
        "I throw a ball / against the wall.",
        "The snow is deep, / the bears all sleep.",
    ],
    "a train": [
        "The train goes fast, / the trees fly past.",
        "Here comes the train / through sun and rain.",
        "It blows its horn / at early morn.",
        "We ride all day, / a long long way.",
    ],
}


def rhyme(r, topic):
    """A rhyme of two or three couplets."""
    lines = [say(r, c) for c in r.sample(COUPLETS[topic], 2 + (r.random() < 0.3))]
    return "\n".join(line[0].upper() + line[1:] for c in lines for line in c.split(" / "))


def rhyme_turn(r):
    """A rhyme on request."""
    t = r.choice(list(COUPLETS))
    return say(
        r, f"[Write|Tell me|Give me|Make|Please write] a [short rhyme|rhyme|short poem|little poem] about {t}."
    ), rhyme(r, t)


def rhyme_plain(r):
    """A rhyme with its title."""
    t = r.choice(list(COUPLETS))
    return t.capitalize() + "\n\n" + rhyme(r, t)


def letter(r):
    """A short letter: its reader, its writer, the text."""
    a, b = r.sample(GIRLS + BOYS, 2)
    f = dict(
        a=a,
        b=b,
        w=r.choice(WEATHER),
        g=r.choice(GAMES),
        f=an(r.choice(FOODS)),
        o=r.choice(OBJECTS),
        c=r.choice(COLORS),
        x=r.choice(ANIMALS),
        d=r.choice(DAYS),
        at=r.choice(PLACES)[1],
    )
    text = say(
        r,
        "Dear {a},\n[how are you? I am fine.|thank you for your letter.|I hope that you are well.] [Today was a {w} day.|Yesterday it was very {w}.|We are {at} now.] [I saw a little {x} here.|I found a {c} {o}.|We like to {g} every day.|My mother made {f} for me.] [Please come and visit us on {d}.|I will see you on {d}.|Please write back soon.|We can {g} when you come.]\n[Your friend|Love|Best wishes],\n{b}",
        f,
    )
    return a, b, text


def letter_turn(r):
    """A letter on request."""
    a, b, text = letter(r)
    return say(
        r,
        f"[Write a short letter from {b} to {a}.|Can you write a letter to {a}? My name is {b}.|Please write a letter to {a} from {b}.]",
    ), text
