"""Documents of each kind, and how often each kind comes."""

# ruff: noqa: E501
# A sentence of the text is one line.

from .code import code_plain, code_turn
from .plots import PLOT_NAMES
from .rhymes import letter, letter_turn, rhyme_plain, rhyme_turn
from .stories import ask_story, follow_up, make_fields, tell, tiny_story
from .talk import GREETINGS, SYSTEMS, THANKS, fact, talk
from .tasks import list_plain, list_turn, recall_plain, recall_turn, sum_plain, sum_turn
from .words import BOYS, GIRLS, PET_NAMES, say


def chat(r, turns):
    """Turns in ChatML form, now and then with a system line."""
    out = []
    if r.random() < 0.15:
        out.append(f"<|im_start|>system\n{r.choice(SYSTEMS)}<|im_end|>\n")
    for q, a in turns:
        out.append(f"<|im_start|>user\n{q}<|im_end|>\n<|im_start|>assistant\n{a}<|im_end|>\n")
    return "".join(out)


def doc_story(r):
    """A plain story."""
    f = make_fields(r, r.choice(PLOT_NAMES))
    return tell(r, f, 2 if r.random() < 0.6 else 1)


def doc_chat_story(r):
    """A story on request, often with questions about it, sometimes with a second story."""
    q, a, f = ask_story(r, 2 if r.random() < 0.35 else 1)
    turns = [(q, a)]
    if r.random() < 0.1:
        turns.insert(0, talk(r, GREETINGS))
    n = r.choice([0, 0, 0, 1, 1, 2, 3])
    seen = set()
    for _ in range(n):
        t = follow_up(r, f)
        if t[0] not in seen:
            seen.add(t[0])
            turns.append(t)
    x = r.random()
    if x < 0.1:
        q = say(
            r,
            "[Tell me another story about {H}.|Another story about {H}, please.|What did {H} do next?|One more with {H}.]",
            f,
        )
        turns.append((q, tell(r, make_fields(r, r.choice(PLOT_NAMES), f["hero"]), 1)))
    elif x < 0.2:
        turns.append(
            (
                r.choice(["Tell me another one.", "Another story, please.", "One more!", "Tell me another."]),
                ask_story(r, 1, same=True)[1],
            )
        )
    elif x < 0.3:
        turns.append(talk(r) if r.random() < 0.3 else talk(r, THANKS))
    return chat(r, turns)


def doc_chat(r):
    """Small talk and facts, a few turns."""
    turns = [talk(r) if r.random() < 0.35 else fact(r) for _ in range(1 + int(r.random() * 5))]
    x = r.random()
    if x < 0.12:
        turns.append(rhyme_turn(r))
    elif x < 0.2:
        turns.append(tiny_story(r))
    elif x < 0.3:
        turns.append(r.choice([sum_turn, list_turn])(r))
    return chat(r, turns)


def several(turn, plain, most, share):
    """A document kind made of up to so many turns of one kind, or of its plain form."""

    def make(r):
        """One document of this kind."""
        if r.random() < share:
            return plain(r)
        return chat(r, [turn(r) for _ in range(1 + int(r.random() * most))])

    return make


def doc_rhyme(r):
    """Rhymes and letters."""
    x = r.random()
    if x < 0.5:
        return chat(r, [rhyme_turn(r)])
    if x < 0.65:
        return rhyme_plain(r)
    return chat(r, [letter_turn(r)]) if x < 0.85 else letter(r)[2]


MEETINGS = [
    "{a} saw {b}.",
    "{b} saw {a}.",
    "{a} and {b} are friends.",
    "{a} likes {b}.",
    '"Hello, {a}," said {b}.',
    '"Hello, {b}," said {a}.',
    "{a} smiled at {b}.",
    "{b} called {a}.",
    '"Where is {b}?" asked {a}.',
    '"Here I am," said {b}.',
    "{a} ran home.",
    "{b} went home with {a}.",
    '"Thank you, {b}," said {a}.',
    "One day, {a} met {b}.",
    "{a} was happy.",
    "Then {b} came to {a}.",
]


def doc_copy(r):
    """Very little but names that come back: what a model has to learn before it can keep a hero's name."""
    x = r.random()
    names = r.sample(GIRLS + BOYS + PET_NAMES, 8)
    if x < 0.35:
        row = r.choice([", ", " and ", ". ", ", then "]).join(names[: 2 + int(r.random() * 6)])
        return "\n".join([row] * (2 + int(r.random() * 3)))
    a, b = names[:2]
    text = " ".join(t.format(a=a, b=b) for t in r.sample(MEETINGS, 4 + int(r.random() * 5)))
    if x < 0.65:
        return text
    q = say(
        r,
        r.choice(["[Tell me about|Say something about|Write about] {a} and {b}.", "[Who are|What about] {a} and {b}?"]),
        dict(a=a, b=b),
    )
    return chat(r, [(q, text)])


def doc_tiny(r):
    """A few very short stories on request."""
    return chat(r, [tiny_story(r) for _ in range(1 + int(r.random() * 2))])


# kind: (maker, share of the documents, share while the model learns to copy, share at the end, when sums and rows,
# which are short and hard, count most)
KINDS = {
    "story": (doc_story, 0.12, 0.08, 0.06),
    "chat_story": (doc_chat_story, 0.33, 0.22, 0.20),
    "chat": (doc_chat, 0.12, 0.04, 0.13),
    "tiny": (doc_tiny, 0.03, 0.12, 0.02),
    "list": (several(list_turn, list_plain, 3, 0.15), 0.08, 0.03, 0.23),
    "sum": (several(sum_turn, sum_plain, 4, 0.2), 0.11, 0.03, 0.20),
    "recall": (several(recall_turn, recall_plain, 4, 0.25), 0.08, 0.18, 0.08),
    "code": (several(code_turn, code_plain, 2, 0.45), 0.08, 0.03, 0.05),
    "rhyme": (doc_rhyme, 0.03, 0.02, 0.02),
    "copy": (doc_copy, 0.02, 0.25, 0.01),
}


def document(r, column=1):
    """One document: its kind and its text; `column` 2 draws from the shares of the copying phase, 3 of the last phase."""
    x = r.random()
    for kind, entry in KINDS.items():  # noqa: B007 (used behind the loop)
        x -= entry[column]
        if x < 0:
            break
    return kind, entry[0](r).strip("\n") + "\n"
