"""The table of slash commands: dispatch, help, completion agree, and refusals change nothing."""

import copy

import pytest

from strata_cli.chat.conversation import SETTABLE
from strata_cli.chat.slash import COMMANDS, dispatch, help_lines, is_command, literal
from strata_cli.config import SamplingParams
from strata_cli.errors import StrataError, UsageError
from tests.chat_fake import contents, dialogue


def test_the_table_has_the_commands_of_the_design():
    names = {command.name for command in COMMANDS}
    asked = "help exit clear regen edit system think read save load stats draft set n".split()
    assert names == set(asked)


def test_help_shows_every_command_once():
    lines = help_lines()
    for command in COMMANDS:
        assert sum(line.startswith(f"/{command.name}") and command.help in line for line in lines) == 1
    assert all(len(line) <= 80 for line in lines)


@pytest.mark.parametrize(
    ("typed", "nearest"), [("/halp", "help"), ("/sytem be kind", "system"), ("/quite", "quit"), ("/N", "n")]
)
def test_an_unknown_command_names_the_nearest_and_changes_nothing(typed, nearest):
    talk = dialogue()
    talk.say("hello")
    before = copy.deepcopy(talk.conversation)
    with pytest.raises(UsageError) as refused:
        dispatch(talk, typed)
    assert typed.split()[0] in refused.value.what
    assert f"/{nearest}?" in refused.value.hint
    assert talk.conversation == before and not talk.leaving


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("/clear all", "takes no argument"),
        ("/read", "/read FILE"),
        ("/load", "/load FILE"),
        ("/think maybe", "on, off"),
        ("/think 0", "1 or more"),
        ("/draft many", "auto or off"),
        ("/draft 17", "0 to 4"),
        ("/n 0", "1 to 4"),
        ("/n 9", "1 to 4"),
        ("/set temperature 200", "0 to 100"),
        ("/set top_q 1", "did you mean top_"),
        ("/save", "no file name"),
        ("/regen", "no answer"),
        ("/read /no/such/file", "No such file"),
    ],
)
def test_refusals_change_nothing(typed, says):
    talk = dialogue()
    before = copy.deepcopy(talk.conversation)
    with pytest.raises(StrataError) as refused:
        dispatch(talk, typed)
    assert says in str(refused.value)
    assert talk.conversation == before and talk.attached == []


def test_settings():
    talk = dialogue()
    for line in ("/set temperature 0.25", "/draft 2", "/think on", "/think 64", "/n 3", "/system be brief"):
        dispatch(talk, line)
    conversation = talk.conversation
    assert conversation.params == SamplingParams(temperature=0.25, spec=2)
    assert (conversation.think, conversation.think_budget) == (True, 64)
    assert (conversation.n, conversation.system) == (3, "be brief")
    for line in ("/set temperature default", "/draft auto", "/think off", "/think free", '/system ""'):
        dispatch(talk, line)
    assert conversation.params == SamplingParams(temperature=0.7, spec=None)
    assert (conversation.think, conversation.think_budget, conversation.system) == (False, None, None)
    dispatch(talk, "/draft off")
    assert conversation.params.spec == 0


def test_showing_changes_nothing():
    talk = dialogue()
    before = copy.deepcopy(talk.conversation)
    for line in ("/set", "/set top_p", "/draft", "/think", "/n", "/system", "/stats", "/help"):
        dispatch(talk, line)
    assert talk.conversation == before
    assert [note for note in talk.screen.notes if note.startswith("top_p")] == ["top_p = 1.0"] * 2
    assert {note.split(" = ")[0] for note in talk.screen.notes if " = " in note} == set(SETTABLE)


def test_read_goes_before_the_next_message_only(tmp_path):
    (tmp_path / "a.txt").write_text("file a\n")
    (tmp_path / "b.txt").write_text("file b")
    (tmp_path / "c.bin").write_bytes(b"\xff\xfe\x00")
    talk = dialogue()
    dispatch(talk, f"/read {tmp_path}/a.txt")
    dispatch(talk, f"/read {tmp_path}/b.txt")
    with pytest.raises(StrataError, match="UTF-8"):
        dispatch(talk, f"/read {tmp_path}/c.bin")
    talk.say("compare")
    talk.say("next")
    assert contents(talk)[::2] == ["file a\n\n\nfile b\n\ncompare", "next"]


def test_clear_keeps_the_system_text():
    talk = dialogue(system="s")
    talk.say("hello")
    dispatch(talk, "/clear")
    assert contents(talk) == [] and talk.conversation.system == "s"


def test_save_and_load_remember_the_file(tmp_path):
    talk = dialogue()
    talk.say("hello")
    dispatch(talk, f"/save {tmp_path}/with a blank.json")
    talk.say("more")
    dispatch(talk, "/save")
    other = dialogue()
    dispatch(other, f"/load {tmp_path}/with a blank.json")
    assert contents(other) == contents(talk) and len(contents(other)) == 4


@pytest.mark.parametrize("name", ["exit", "quit", "bye"])
def test_leaving(name):
    talk = dialogue()
    dispatch(talk, f"/{name}")
    assert talk.leaving


@pytest.mark.parametrize(
    ("typed", "command", "sent"),
    [("/help", True, "/help"), ("//help", False, "/help"), ("a /help", False, "a /help"), ("///x", False, "//x")],
)
def test_two_slashes_are_text(typed, command, sent):
    assert is_command(typed) is command
    assert literal(typed) == sent
