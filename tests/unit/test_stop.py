"""Stop strings: where the text ends depends on the characters alone."""

from hypothesis import example, given
from hypothesis import strategies as st

from strata_cli.text.stop import StopWatch


class Pieces:
    """A detokenizer whose token i is the i-th piece of text."""

    def __init__(self, pieces, rest=""):
        self.pieces, self.rest = pieces, rest

    def push(self, token):
        return self.pieces[token]

    def flush(self):
        return self.rest


def naive(text: str, stops: list[str]) -> tuple[str, bool]:
    """Try every end, shortest first; at one end the longest stop."""
    for end in range(1, len(text) + 1):
        hits = [stop for stop in stops if text[:end].endswith(stop)]
        if hits:
            return text[: end - max(map(len, hits))], True
    return text, False


small = st.text("ab<>", max_size=4)


@given(st.lists(small, max_size=8), small, st.lists(st.text("ab<>", min_size=1, max_size=4), max_size=3))
@example(["a", "b", "c"], "", ["abc", "b"])
@example(["abc"], "", ["abc", "b"])
def test_the_text_ends_where_the_characters_say(pieces, rest, stops):
    expected, stopped = naive("".join(pieces) + rest, stops)
    watch = StopWatch(Pieces(pieces, rest), stops)
    streamed = ""
    for token in range(len(pieces)):
        done = watch.push(token)
        streamed += watch.take()
        assert expected.startswith(streamed), "streamed text is never taken back"
        if done:
            break
    watch.close()
    streamed += watch.take()
    assert watch.text == streamed == expected
    assert watch.stopped == stopped


def test_text_that_may_begin_a_stop_string_waits():
    watch = StopWatch(Pieces(["Hi <", "/", "b", "</b", ">tail"]), ["</b>"])
    taken = []
    for token in range(5):
        done = watch.push(token)
        taken.append(watch.take())
    assert taken == ["Hi ", "", "", "</b", ""]
    assert done
    assert watch.text == "Hi </b"


def test_without_stop_strings_everything_leaves_at_once():
    watch = StopWatch(Pieces(["a", "b"], "!"))
    assert (watch.push(0), watch.take(), watch.push(1), watch.take()) == (False, "a", False, "b")
    watch.close()
    assert (watch.take(), watch.text) == ("!", "ab!")


def test_nothing_is_added_after_the_stop():
    watch = StopWatch(Pieces(["x##", "more"], "rest"), ["##"])
    assert watch.push(0)
    assert watch.push(1)
    watch.close()
    assert (watch.text, watch.take(), watch.take()) == ("x", "x", "")
