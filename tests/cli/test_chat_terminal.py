"""`strata chat` in a real pseudo-terminal, on the scripted engine."""

import json
import re
import stat
from pathlib import Path

import pytest

from tests.cli.talk import ALT_ENTER, CTRL_C, CTRL_G, CTRL_J, PROMPT, TAB, UP, Talk


def saved(path: Path) -> list[str]:
    return [message["content"] for message in json.loads(path.read_text())["messages"]]


def save(chat: Talk, path: Path) -> list[str]:
    chat.type(f"/save {path}")
    chat.until("saved")
    return saved(path)


def test_a_conversation(talk, tmp_path):
    chat = talk()
    first = chat.answer("hello")
    assert "you said 'hello'" in first
    assert re.search(r"\d+ tok · [\d,.]+ tok/s · accepted 67 % · L 4\.0 · keeps 2\.\d · ctx \d+/100,000", first)
    chat.answer("again")
    assert save(chat, tmp_path / "a.json")[::2] == ["hello", "again"]
    assert chat.leave() == 0


def test_the_banner_names_model_slots_and_seed(talk):
    assert "fake · 4 slots · context 100,000 · seed 7" in talk().seen


@pytest.mark.parametrize(
    ("keys", "sent"),
    [
        (["one", ALT_ENTER, "two"], "one\ntwo"),
        (["one", CTRL_J, "two"], "one\ntwo"),
        (['"""one', "\r", "  two", "\r", '"""'], "one\n  two"),
        (['"""/help"""'], "/help"),
        (["\x1b[200~pasted\r\nlines\rthree\x1b[201~", " end"], "pasted\nlines\nthree end"),
        (["//etc"], "/etc"),
        (["lost", CTRL_C, "kept"], "kept"),
        (["ünïcode 你好"], "ünïcode 你好"),
    ],
)
def test_keys(talk, tmp_path, keys, sent):
    chat = talk()
    for part in keys:
        chat.child.send(part)
    chat.answer("")
    assert save(chat, tmp_path / "a.json")[0] == sent


def test_ctrl_c_on_an_empty_line_says_how_to_leave(talk):
    chat = talk()
    chat.type(CTRL_C, "")
    chat.until("Ctrl-D or /exit leaves")
    assert "you said" in chat.answer("still here")
    assert chat.leave() == 0


def test_ctrl_c_stops_the_answer_and_keeps_what_came(talk, tmp_path):
    chat = talk(FAKE_DELAY_S="0.02")
    chat.type("long")
    chat.until("word3")
    chat.type(CTRL_C, "")
    chat.until(r"\(interrupted\)")
    chat.until(PROMPT)
    chat.type("/set temperature 0.1")
    chat.until("temperature = 0.1")
    path = tmp_path / "a.json"
    asked, came = save(chat, path)
    assert asked == "long" and came.startswith("word0 word1 word2 word3") and len(came) < 10_000
    assert json.loads(path.read_text())["messages"][1]["interrupted"] is True
    assert "you said 'next'" in chat.answer("next")


@pytest.mark.parametrize("word", ["/exit", "/quit", "/bye"])
def test_leaving(talk, word):
    assert talk().leave(word + "\r") == 0


def test_an_unknown_command_names_the_nearest_and_changes_nothing(talk, tmp_path):
    chat = talk()
    chat.answer("hello")
    chat.type("/halp me")
    assert "/help?" in chat.until(r"did you mean \S+")
    assert len(save(chat, tmp_path / "a.json")) == 2


def test_errors_are_lines_and_the_conversation_goes_on(talk):
    chat = talk()
    for typed, says in (
        ("/set temperature 300", "0 to 100"),
        ("/read /no/such", "No such file"),
        ("/load /no/such", "No such file"),
        ("/n 9", "4 slots"),
        ("/edit", "VISUAL"),
        ("x" * 100 + "/", "you said"),
    ):
        chat.type(typed)
        chat.until(says)
    assert "Traceback" not in chat.seen
    assert chat.leave() == 0


def test_help_lists_the_table(talk):
    chat = talk()
    chat.type("/help")
    shown = chat.until("Ctrl-D on an empty line leaves")
    for name in "help exit clear regen edit system think read save load stats draft set n".split():
        assert re.search(rf"^/{name}\b", shown, re.MULTILINE), name


def test_completion_of_names_words_and_paths(talk, tmp_path):
    (tmp_path / "notes.txt").write_text("the notes")
    chat = talk()
    chat.type(f"/re{TAB}", "")  # /regen and /read: a menu
    chat.until("another answer to your last message")
    chat.until("put a file's text")
    chat.type(CTRL_C, "")
    chat.type(f"/dr{TAB}", "")
    chat.until("aft")  # the terminal is sent what differs from before
    chat.type(f" of{TAB}", "")
    chat.until("f$")
    chat.type("")
    chat.until("drafts: off")
    chat.type(f"/read {tmp_path}/no{TAB}", "")
    chat.until("tes.txt")
    chat.type("")
    chat.until("9 characters")


def test_thinking_is_dimmed_and_set_apart(talk):
    chat = talk("--think", "on")
    shown = chat.answer("why")
    assert "\x1b[2mpon" in chat.raw
    assert re.search(r"thinking:\npondering why\n\(thought for \d+ tokens\)\n\nyou said 'why'", shown)


def test_no_color_means_no_escapes_of_ours(talk):
    chat = talk("--think", "on", NO_COLOR="1")
    assert "pondering why" in chat.answer("why") and "\x1b[2m" not in chat.raw


def test_a_thinking_budget(talk):
    chat = talk()
    chat.type("/think on")
    chat.until("thinking: on")
    chat.type("/think 5")
    chat.until("5 tokens at most")
    assert "thinking closed at its budget of 5 tokens" in chat.answer("why")


def test_candidates_and_a_pick(talk, tmp_path):
    chat = talk("--n", "4")
    chat.type("hello")
    shown = chat.until("pick 1-4")
    assert re.search(r"1 · \d+ tok · stop +│ 2 · \d+ tok · stop", shown)
    chat.answer("3")
    third = save(chat, tmp_path / "a.json")[1]
    chat.type("/regen")
    chat.until("pick 1-4")
    chat.answer("1")
    other = save(chat, tmp_path / "a.json")[1]
    assert other != third and other.startswith("you said 'hello'")
    chat.type("/regen")
    chat.until("pick 1-4")
    chat.type("0")
    chat.until("as before")
    assert save(chat, tmp_path / "a.json")[1] == other


def test_candidates_without_the_live_columns(talk):
    chat = talk("--n", "2", "--no-tui")
    chat.type("hello")
    shown = chat.until("pick 1-2")
    assert "--- candidate 1 ---\nyou said 'hello'" in shown and "│" not in shown


def test_ctrl_c_at_the_pick_takes_none(talk, tmp_path):
    chat = talk("--n", "2")
    chat.type("hello")
    chat.until("pick 1-2")
    chat.type(CTRL_C, "")
    chat.until("as before")
    assert save(chat, tmp_path / "a.json") == []


def test_a_loaded_conversation_goes_on_with_the_same_tokens(talk, tmp_path):
    path = tmp_path / "first.json"
    chat = talk("-s", "be kind", "--temperature", "0.4")
    chat.answer("one")
    chat.answer("two")
    save(chat, path)
    chat.answer("three")
    mine = save(chat, tmp_path / "mine.json")
    other = talk("--seed", "99")
    other.type(f"/load {path}")
    other.until("loaded 4 messages")
    other.answer("three")
    assert save(other, tmp_path / "other.json") == mine
    assert len(mine) == 6


def test_the_editor(talk, tmp_path):
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nprintf " and more" >> "$1"\n')
    editor.chmod(0o755)
    chat = talk(EDITOR=str(editor))
    chat.type("typed", CTRL_G)
    chat.until("and more")
    chat.answer("")
    assert save(chat, tmp_path / "a.json")[0] == "typed and more"
    chat.answer("/edit")
    assert save(chat, tmp_path / "a.json")[::2] == ["typed and more and more"]


def test_history_is_private_and_comes_back(talk, tmp_path):
    chat = talk()
    chat.answer("remember me")
    chat.leave()
    file = tmp_path / "state" / "strata" / "history"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "+remember me" in file.read_text()
    file.chmod(0o644)
    again = talk()
    again.answer(UP)
    assert "you said 'remember me'" in again.seen
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize(("args", "env"), [(["--no-history"], {}), ([], {"STRATA_NO_HISTORY": "1"})])
def test_no_history(talk, tmp_path, args, env):
    chat = talk(*args, **env)
    chat.answer("forget me")
    assert chat.leave() == 0
    assert not (tmp_path / "state").exists()


def test_a_model_does_not_steer_the_terminal(talk):
    chat = talk()
    chat.answer("\x1b[200~evil \x07\x1b]0;title\x1b[201~")
    answer = chat.raw.split("you said", 1)[1]
    assert "\x07" not in answer and "\x1b]0" not in answer


@pytest.mark.parametrize(("keys", "code"), [("2\r", 0), (CTRL_C, 130)])
def test_one_question_with_candidates(talk, keys, code):
    chat = talk("--n", "2", "hello", prompt="pick 1-2")
    assert chat.leave(keys) == code
    assert (chat.child.before.count("you said 'hello'") > 0) == (code == 0)


def test_stdout_in_a_file_holds_the_answers_alone(talk, tmp_path):
    file = tmp_path / "out.txt"
    chat = talk("--think", "on", stdout=file)
    chat.answer("hello")
    chat.type("/n 2")
    chat.until("candidates for each answer: 2")
    chat.type("again")
    chat.until("pick 1-2")
    chat.answer("1")
    answers = save(chat, tmp_path / "a.json")[1::2]
    assert chat.leave() == 0
    assert file.read_text() == "".join(f"{answer}\n" for answer in answers) and len(answers) == 2


def test_quiet_shows_the_answer_alone(talk, tmp_path):
    chat = talk("--quiet")
    assert "slots" not in chat.seen
    chat.type("hello")
    chat.until("you said 'hello'")
    save(chat, tmp_path / "a.json")
    assert "tok/s" not in chat.seen
