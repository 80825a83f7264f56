"""Stories with consistent names, requests for them, and questions about them."""

# ruff: noqa: E501
# A sentence of the text is one line.

from .plots import PLOT_NAMES, PLOTS
from .words import (
    ANIMALS,
    BOYS,
    COLORS,
    FOODS,
    GAMES,
    GIRLS,
    OBJECTS,
    PET_NAMES,
    PLACES,
    ROLE_GENDER,
    ROLES,
    SIZES,
    SPOTS,
    TRAITS,
    WEATHER,
    an,
    plural,
    say,
)

OPENINGS = [
    "[Once upon a time, there was|Once there was|Long ago, there was] {asize} {what} named {H}. {H} lived {at}.",
    "[Once upon a time, there was|Once there was|Long ago, there was] {atrait} {what} called {H}, who lived {at}.",
    "{H} was {atrait} {what} who lived {at}.",
    "There once was {atrait} {what} whose name was {H}. {He} lived {at}.",
    "Once upon a time, {asize} {what} named {H} lived {at}.",
    "{place_cap} was the home of {H}, {atrait} {what}.",
]
OPENINGS2 = [
    "{H} loved to {game}.",
    "Every day, {he} liked to {game}.",
    "{H} was very {trait}, and everyone liked {him}.",
    "",
    "",
    "{His} best friend was {Ff}.",
    "{H} and {Ff} were good friends.",
]
FEELINGS = "[{H} felt {feel}.|{H} was very {feel}.|On that day, {H} felt {feel}.]"
ENDINGS = [
    "From that day on, {H} and {F} were best friends.",
    "{H} and {F} played together until the sun went down.",
    "{H} and {F} laughed and danced all the way home.",
    "After that, {H} and {F} met every day.",
    "{H} went home with a big smile.",
    "That night, {H} fell asleep and had sweet dreams.",
    "And they all lived happily ever after.",
    "{H} felt warm and happy inside.",
    "The end.",
]
MORALS = ["{H} learned that {moral}.", "And so {H} knew that {moral}.", "Now {H} and {F} know that {moral}."]


def person(r, used):
    """A character: name, what it is, pronouns; no name or kind of animal twice in a story."""
    while True:
        x = r.random()
        if x < 0.38:
            girl = r.random() < 0.5
            what, name = ("girl", r.choice(GIRLS)) if girl else ("boy", r.choice(BOYS))
        else:
            what = r.choice(ANIMALS if x < 0.85 else ROLES)
            girl = ROLE_GENDER.get(what, int(r.random() * 2))
            name = r.choice(PET_NAMES) if r.random() < 0.7 else r.choice(GIRLS if girl else BOYS)
        if name not in used and (what not in used or what in ("girl", "boy")):
            break
    used |= {name, what}
    return name, what, ("she", "her", "her") if girl else ("he", "him", "his")


def full(name, what):
    """The long form of a character's name."""
    return name if what in ("girl", "boy") else f"{name} the {what}"


def make_fields(r, plot, hero=None):
    """Everything that a story of this plot needs."""
    used = {hero[0], hero[1]} if hero else set()
    hero = hero or person(r, used)
    friend = person(r, used)
    p = PLOTS[plot]
    f = dict(H=hero[0], what=hero[1], he=hero[2][0], him=hero[2][1], his=hero[2][2], Hf=full(*hero[:2]))
    f.update(F=friend[0], fwhat=friend[1], fhe=friend[2][0], fhim=friend[2][1], fhis=friend[2][2], Ff=full(*friend[:2]))
    f.update(He=f["he"].capitalize(), His=f["his"].capitalize(), FHe=f["fhe"].capitalize(), His2=f["fhis"].capitalize())
    f["place"], f["at"] = r.choice(PLACES)
    f["place_cap"] = "The " + f["place"]
    f["obj"], f["col"], f["food"] = (
        r.choice(p.get("objs", "").split() or OBJECTS),
        r.choice(COLORS),
        r.choice(p.get("foods", "").split() or FOODS),
    )
    f["spot"], f["spot2"], f["spot3"] = r.sample(SPOTS, 3)
    f["weather"], f["game"], f["trait"], f["size"] = (
        r.choice(WEATHER),
        r.choice(GAMES),
        r.choice(TRAITS),
        r.choice(SIZES),
    )
    f["thing"] = r.choice(p["things"]) if "things" in p else ""
    f["Thing"], f["athing"] = f["thing"].capitalize(), an(f["thing"] or "x")
    for k in ("obj", "col", "food", "size", "trait"):
        f["a" + k] = an(f[k])
    f["foods"] = plural(f["food"])
    f["moral"], f["feel"], f["plot"], f["hero"], f["tell_feeling"] = p["moral"], p["feel"], plot, hero, False
    return f


def tell(r, f, length):
    """The story: length 0 is the two-sentence form, 1 short, 2 long."""
    p = PLOTS[f["plot"]]
    if length == 0:
        return say(r, p["sum"] + r.choice(["", " " + r.choice(ENDINGS[:8])]), f)
    second = FEELINGS if f["tell_feeling"] else r.choice(OPENINGS2) if length == 2 else ""
    parts = [r.choice(OPENINGS) + " " + second]
    for beat in p["beats"]:
        if beat[0] != "?":
            parts.append(beat)
        elif length == 2 and r.random() < 0.75:
            parts.append(beat[1:])
    x = r.random()
    parts.append(
        r.choice(ENDINGS) if x < 0.55 else r.choice(MORALS) if x < 0.75 else r.choice(MORALS) + " " + r.choice(ENDINGS)
    )
    lines = [" ".join(say(r, t, f).split()) for t in parts]
    if length == 1 or r.random() < 0.4:
        return " ".join(lines)
    return lines[0] + " " + lines[1] + "\n" + "\n".join(lines[2:])


def request(r, f):
    """What a user asks for so that this story is the answer, and the topic in words."""
    p = PLOTS[f["plot"]]
    kid = f["what"] in ("girl", "boy")
    named = f"{an(f['what'])} named {f['H']}"
    hero = r.choice([named, named, f["H"] if kid else f["Hf"], f["H"] if kid else f["Hf"], f["H"], an(f["what"])])
    friend = r.choice(
        [f["Ff"], f"{an(f['fwhat'])} named {f['F']}", f["F"] if f["fwhat"] in ("girl", "boy") else an(f["fwhat"])]
    )
    forms = [hero, f"{hero} and {friend}", "{hero} {at}", "{topic}", "{hero} and {topic}", "{hero} who feels {feel}"]
    if p["uses"] == "obj":
        forms += ["{hero} and {aobj}", "{hero} and {acol} {obj}", "{acol} {obj}"]
    elif p["uses"] == "food":
        forms += ["{hero} and {afood}", "{hero} and {afood}"]
    form = r.choice(forms)
    f["tell_feeling"] = "{feel}" in form
    topic = form.format_map(dict(f, hero=hero, topic=r.choice(p["topics"]).format_map(f)))
    text = say(
        r,
        r.choice(
            [
                "[Tell me|Can you tell me|Please tell me|Could you tell me] a [story|short story|little story|bedtime story] about {t}",
                "[Write|Please write|Make up|Give me] a [story|short story] about {t}",
                "I [want|would like] a story about {t}",
                "Do you know a story about {t}",
                "[A story|Story] about {t}, please",
                "I want to hear about {t}",
            ]
        ),
        dict(t=topic),
    )
    mark = "?" if text.startswith(("Can", "Could", "Do ")) else "."
    if r.random() < 0.15:
        return text[0].lower() + text[1:] if text[:2] != "I " else text, topic
    return text + mark, topic


PREFACES = [
    "Sure! Here is a story about {t}.\n",
    "Here is a story about {t}.\n",
    "Of course! This is a story about {t}.\n",
    "Yes! I know a story about {t}.\n",
]


def ask_story(r, length, hero=None, same=False):
    """A request and its answer; returns both and the story's fields."""
    f = make_fields(r, r.choice(PLOT_NAMES), hero)
    if same:
        return None, tell(r, f, length), f
    x = r.random()
    if x < 0.06:
        return (
            r.choice(
                [
                    "Tell me a story.",
                    "Can you tell me a story?",
                    "I want a story.",
                    "Please tell me something nice.",
                    "Story please",
                    "Write a short story.",
                ]
            ),
            tell(r, f, length),
            f,
        )
    q, topic = request(r, f)
    answer = tell(r, f, length)
    if r.random() < 0.35:
        answer = r.choice(PREFACES).format(t=topic) + answer
    return q, answer, f


def tiny_story(r):
    """A request for a very short story and a story of two or three sentences."""
    f = make_fields(r, r.choice(PLOT_NAMES))
    f["who"] = r.choice([f["H"], f["Hf"], f"{f['H']} and {f['Ff']}", f"{an(f['what'])} named {f['H']}"])
    return say(
        r, "[Tell me|Write|Give me|Please tell me] a [very short|tiny|very very short] story about {who}.", f
    ), tell(r, f, 0)


def follow_up(r, f):
    """A question about the story just told and its answer."""
    p = PLOTS[f["plot"]]
    x = r.random()
    if x < 0.22:
        return r.choice(
            [
                "Make it shorter.",
                "Can you make it shorter?",
                "Shorter, please.",
                "Tell me the story in two sentences.",
                "What was the story about?",
                "Sum it up, please.",
            ]
        ), say(r, p["sum"], f)
    if x < 0.40:
        return say(
            r,
            r.choice(
                [
                    "What was {his} name?",
                    "What was the name of the {what}?",
                    "What was the {what} called?",
                    "What was {his} name again?",
                ]
            ),
            f,
        ), say(r, "[{His} name was {H}.|The {what} was called {H}.]", f)
    if x < 0.50:
        return say(r, "[Who was the friend of {H}?|Who was the friend?|What was the name of the friend?]", f), say(
            r, "The friend was {Ff}.", f
        )
    if x < 0.60:
        return say(r, "[Where did {H} live?|Where did {he} live?]", f), say(r, "{H} lived {at}.", f)
    if x < 0.70:
        return say(r, "[What did {H} learn?|What is the lesson?|What does the story teach?]", f), say(
            r, "{H} learned that {moral}.", f
        )
    if x < 0.76:
        return f"What is {f['H']}?", f"{f['H']} is {an(f['what'])}."
    q, a = r.choice(p["ask"])
    return say(r, q, f), say(r, a, f)
