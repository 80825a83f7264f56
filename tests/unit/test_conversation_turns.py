"""Turns of a dialogue on a scripted engine: what is said, kept, undone; thinking and its budget; candidates."""

import signal

import pytest

from strata_cli.chat.conversation import answer_seed
from strata_cli.chat.dialogue import Dialogue
from strata_cli.chat.status import answer_record, status_line
from strata_cli.chat.turn import added
from strata_cli.config import SamplingParams
from strata_cli.engine.types import SpecStats
from strata_cli.errors import StrataError, UsageError
from tests.chat_fake import KEEPS, FakeEngine, FakeScreen, L, PlainTemplate, contents, dialogue, scripted

CLOSED = "[assistant] <think>\n\n</think>\n\n"


def prompts(talk: Dialogue) -> list[str]:
    return ["".join(map(chr, request.prompt)) for request in talk.session.engine.submitted]


def interrupt_after(screen: FakeScreen, ticks: int) -> None:
    """Send Ctrl-C at that window, and at every later one (each counts)."""
    left = [ticks]

    def tick() -> None:
        left[0] -= 1
        if left[0] == 0:
            signal.raise_signal(signal.SIGINT)

    screen.on_tick = tick


def test_every_prompt_is_the_whole_conversation():
    talk = dialogue(system="be brief")
    talk.say("hello")
    talk.say("again")
    first = f"[system] be brief\n[user] hello\n{CLOSED}"
    reply = scripted(first, 7)
    assert prompts(talk) == [first, f"[system] be brief\n[user] hello\n[assistant] {reply}\n[user] again\n{CLOSED}"]
    assert contents(talk)[:2] == ["hello", reply]
    assert talk.screen.shown and "".join(text for _, text, _ in talk.screen.shown) == contents(talk)[3]


def test_regen_takes_another_seed_and_keeps_the_prompt():
    talk = dialogue()
    talk.say("hello")
    old = contents(talk)[1]
    talk.regen()
    assert prompts(talk)[0] == prompts(talk)[1]
    assert [r.params.seed for r in talk.session.engine.submitted] == [7, answer_seed(7, 0, 1)]
    assert contents(talk)[1] != old and len(contents(talk)) == 2


def test_edit_answers_the_changed_message():
    talk = dialogue(screen=FakeScreen(edits=["hello there\n", "hello there\n", " "]))
    talk.say("hello")
    talk.edit()
    assert talk.screen.edited == "hello" and contents(talk)[0] == "hello there" and len(contents(talk)) == 2
    after = contents(talk)
    talk.edit()
    talk.edit()
    assert contents(talk) == after and len(prompts(talk)) == 2


def test_thinking_is_kept_apart_and_left_to_the_template_later():
    talk = dialogue(think=True)
    talk.say("why")
    message = talk.conversation.messages[1]
    assert message.reasoning_content == "pondering why"
    assert message.content == scripted("[user] why\n[assistant] <think>\n", 7).split("</think>\n\n")[1]
    assert {thinking for _, _, thinking in talk.screen.shown} == {True, False}
    talk.say("and")
    assert "pondering why" not in prompts(talk)[1]


@pytest.mark.parametrize("budget", [1, 4, 5, 6, 10])
def test_thinking_ends_at_exactly_its_budget(budget):
    talk = dialogue(think=True, think_budget=budget)
    talk.say("why")
    opened = "[user] why\n[assistant] <think>\n"
    thought = "pondering why"[:budget]
    second = f"{opened}{thought}\n</think>\n\n"
    assert prompts(talk) == [opened, second]
    message = talk.conversation.messages[1]
    assert message.reasoning_content == thought.rstrip("\n")
    assert message.content == scripted(second, 7)
    answer = talk.screen.ended[0]
    assert answer.forced_close and answer.splitter.thinking_tokens == budget
    assert answer.result.prompt_tokens == len(opened)
    assert answer.context_tokens == len(second) + len(message.content) + 1
    assert len(answer.result.token_ids) == budget + len(message.content) + 1
    assert answer_record(answer)["thinking_cut"] is True


def test_a_budget_that_is_not_reached_changes_nothing():
    talk = dialogue(think=True, think_budget=400)
    talk.say("why")
    assert len(prompts(talk)) == 1 and not talk.screen.ended[0].forced_close


def test_a_budget_and_the_most_tokens_together():
    talk = dialogue(think=True, think_budget=5)
    talk.conversation.set("max_tokens", "5", SamplingParams())
    talk.say("why")
    assert len(prompts(talk)) == 1 and talk.screen.ended[0].result.finish_reason == "length"
    talk.conversation.set("max_tokens", "9", SamplingParams())
    talk.regen()
    result = talk.screen.ended[0].result
    assert (len(result.token_ids), result.finish_reason) == (9, "length")


def test_a_budget_without_room_for_an_answer():
    opened = "[user] why\n[assistant] <think>\n"
    talk = dialogue(FakeEngine(ctx=len(opened) + 8), think=True, think_budget=5)
    talk.say("why")
    assert talk.screen.ended[0].result.finish_reason == "length"
    assert any("no room" in note for note in talk.screen.notes)
    assert talk.conversation.messages[1].reasoning_content == "ponde"


def test_stop_strings_end_the_answer_before_them():
    talk = dialogue()
    talk.conversation.set("stop", "said", SamplingParams())
    talk.say("hello")
    assert contents(talk)[1] == "you "


def test_ctrl_c_keeps_what_came():
    screen = FakeScreen()
    talk = dialogue(screen=screen)
    interrupt_after(screen, 3)
    talk.say("long")
    message = talk.conversation.messages[1]
    assert message.interrupted and message.content == "word0 word1 word2"[: 3 * KEEPS]
    talk.say("go on")
    assert not talk.conversation.messages[3].interrupted
    assert not talk.session.engine.running


def test_ctrl_c_while_thinking_keeps_the_thinking():
    screen = FakeScreen()
    talk = dialogue(screen=screen, think=True, think_budget=2)
    interrupt_after(screen, 1)
    talk.say("why")
    message = talk.conversation.messages[1]
    assert (message.content, message.reasoning_content) == ("", "po")


def test_a_second_ctrl_c_leaves_at_once_and_leaves_nothing_running():
    screen = FakeScreen()
    screen.on_tick = lambda: signal.raise_signal(signal.SIGINT)
    talk = dialogue(FakeEngine(), screen)
    talk.session.engine.cancel = lambda request_id: False  # an engine that is slow to stop
    before = signal.getsignal(signal.SIGINT)  # ignored, where the tests were started in the background
    with pytest.raises(KeyboardInterrupt):
        talk.say("long")
    assert contents(talk) == []
    assert signal.getsignal(signal.SIGINT) is before


def test_nothing_is_kept_of_an_answer_that_did_not_begin():
    talk = dialogue()
    talk.say("hello")
    before = contents(talk)
    engine = talk.session.engine
    submit = engine.submit

    def submit_and_interrupt(request):
        submit(request)
        signal.raise_signal(signal.SIGINT)

    engine.submit = submit_and_interrupt
    talk.say("again")
    assert contents(talk) == before
    assert any("as before" in note for note in talk.screen.notes)


def test_an_error_of_the_engine_leaves_the_conversation_as_it_was():
    talk = dialogue()
    talk.say("hello")
    before = contents(talk)
    talk.session.engine.error = "out of pages"
    with pytest.raises(StrataError, match="out of pages"):
        talk.say("again")
    with pytest.raises(StrataError, match="out of pages"):
        talk.regen()
    assert contents(talk) == before


def test_a_prompt_that_does_not_fit_is_taken_back():
    talk = dialogue(FakeEngine(ctx=60))
    talk.attached.append("kept for the next try")
    with pytest.raises(UsageError, match="context of 60"):
        talk.say("x" * 100)
    assert contents(talk) == [] and talk.attached == ["kept for the next try"]


def test_four_candidates_and_a_pick():
    talk = dialogue(screen=FakeScreen(picks=[2, None]), n=4)
    talk.say("hello")
    requests = talk.session.engine.submitted
    assert [r.params.seed for r in requests] == [answer_seed(7, c, 0) for c in range(4)]
    assert len({tuple(r.prompt) for r in requests}) == 1
    assert contents(talk)[1] == scripted(prompts(talk)[0], answer_seed(7, 2, 0))
    kept = contents(talk)
    talk.regen()  # picks none
    assert contents(talk) == kept
    assert talk.conversation.attempt == 1


def test_more_candidates_than_slots_are_refused():
    talk = dialogue()
    with pytest.raises(UsageError, match="5 candidates do not fit 4 slots"):
        talk.set_candidates(5)
    assert talk.conversation.n == 1


def test_thinking_that_the_template_does_not_know_is_refused():
    with pytest.raises(UsageError, match="no switch"):
        dialogue(template=PlainTemplate(), think=True)
    assert dialogue(template=PlainTemplate()).conversation.think is None


def test_a_saved_session_goes_on_with_the_same_tokens(tmp_path):
    path = tmp_path / "talk.json"
    talk = dialogue(system="s", think=True, think_budget=4)
    talk.conversation.set("temperature", "0.3", SamplingParams())
    talk.say("one")
    talk.regen()
    talk.save(path)
    other = dialogue()
    other.load(path)
    for each in (talk, other):
        each.say("two")
        each.regen()
    mine, loaded = talk.session.engine.submitted[-4:], other.session.engine.submitted
    assert [(r.prompt, r.params) for r in mine] == [(r.prompt, r.params) for r in loaded]
    assert contents(talk) == contents(other)


def test_load_of_another_model_warns_and_of_a_bad_file_changes_nothing(tmp_path):
    path = tmp_path / "talk.json"
    talk = dialogue(screen=FakeScreen(picks=[0]), n=3, name="big")
    talk.say("one")
    talk.save(path)
    other = dialogue()
    other.load(path)
    assert any("saved with big" in note for note in other.screen.notes)
    small = dialogue(FakeEngine(batch=2))
    with pytest.raises(UsageError, match="3 candidates"):
        small.load(path)
    assert contents(small) == [] and small.path is None


def test_the_status_line_and_the_totals_add_up():
    talk = dialogue()
    talk.say("hello")
    answer = talk.screen.ended[0]
    tokens = len(answer.result.token_ids)
    assert (answer.windows, answer.rows, answer.keeps) == (-(-tokens // KEEPS), L * -(-tokens // KEEPS), tokens)
    line = status_line(answer, 1000)
    assert f"{tokens} tok · " in line and "accepted 67 %" in line and "L 4.0" in line
    assert f"ctx {answer.context_tokens}/1,000" in line and line.endswith("cache 0")
    talk.say("again")
    again = talk.screen.ended[0]
    assert talk.totals.tokens == tokens + len(again.result.token_ids)
    assert talk.totals.answers == 2 and talk.totals.windows == answer.windows + again.windows


def test_added_is_the_drafting_of_both():
    first, second, both = SpecStats(), SpecStats(), SpecStats()
    windows = [(4, 4, 2, 3), (4, 3, 0, 1), (0, 0, 0, 1), (2, 2, 2, 3), (5, 5, 5, 6)]
    for i, window in enumerate(windows):
        (first if i < 2 else second).record(*window)
        both.record(*window)
    assert added(first, second) == both == added(second, first)
