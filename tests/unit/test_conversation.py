"""A conversation's state and its file."""

import hashlib
import json
import stat

import pytest

from strata_cli.chat.conversation import Conversation, Message, answer_seed
from strata_cli.config import SamplingParams
from strata_cli.errors import StrataError, UsageError

DEFAULTS = SamplingParams(temperature=0.6, top_k=20)


def talk(**changes) -> Conversation:
    conversation = Conversation(DEFAULTS, seed=7, **changes)
    conversation.say("one\nline")
    conversation.reply("first", "because")
    conversation.say("two")
    conversation.reply("second ünd", interrupted=True)
    return conversation


def test_the_first_answer_has_the_seed_itself_and_every_other_its_own():
    assert answer_seed(7, 0, 0) == 7
    expected = int.from_bytes(hashlib.sha256(b"7/2/1").digest()[:8], "big") >> 1
    assert answer_seed(7, 2, 1) == expected
    seeds = {answer_seed(seed, c, a) for seed in (7, 8) for c in range(4) for a in range(4)}
    assert len(seeds) == 32


def test_parameters_of_a_candidate_carry_its_seed_alone():
    conversation = Conversation(SamplingParams(temperature=0.5, seed=99), seed=7)
    assert conversation.params.seed is None
    conversation.say("x")
    assert conversation.answer_params(0) == SamplingParams(temperature=0.5, seed=7)
    assert conversation.answer_params(1).seed == answer_seed(7, 1, 0)
    conversation.reply("y")
    conversation.retake()
    assert conversation.answer_params(0).seed == answer_seed(7, 0, 1)
    conversation.reply("z")
    conversation.say("next")
    assert conversation.answer_params(0).seed == 7


def test_messages_for_the_template():
    assert talk(system="be brief").for_template() == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "one\nline"},
        {"role": "assistant", "content": "first", "reasoning_content": "because"},
        {"role": "user", "content": "two"},
        {"role": "assistant", "content": "second ünd"},
    ]


def test_a_saved_conversation_comes_back_whole(tmp_path):
    before = talk(system="s", think=True, think_budget=50, n=3)
    before.set("stop", '["END", "\\n\\n"]', DEFAULTS)
    before.set("temperature", "0.25", DEFAULTS)
    before.set_spec(2)
    before.attempt = 2
    path = tmp_path / "talk.json"
    before.save(path, "demo")
    after, model = Conversation.load(path)
    assert (after, model) == (before, "demo")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    raw = json.loads(path.read_text("utf-8"))
    assert (raw["seed"], raw["model"], raw["system"]) == (7, "demo", "s")
    assert raw["messages"][3] == {"role": "assistant", "content": "second ünd", "interrupted": True}
    assert raw["sampling"]["temperature"] == 0.25 and raw["sampling"]["stop"] == ["END", "\n\n"]


def test_save_writes_over_a_conversation_but_over_nothing_else(tmp_path):
    path, other = tmp_path / "talk.json", tmp_path / "thesis.md"
    talk().save(path, "demo")
    shorter = Conversation(DEFAULTS, seed=1)
    shorter.save(path, "demo")
    assert Conversation.load(path)[0].messages == []
    other.write_text("precious")
    with pytest.raises(UsageError, match="no saved conversation"):
        talk().save(other, "demo")
    assert other.read_text() == "precious"
    with pytest.raises(StrataError, match="No such file"):
        talk().save(tmp_path / "nowhere" / "talk.json", "demo")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["talk.json", "thesis.md"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"messages": [{"role": "assistant", "content": "x"}]}, "alternate"),
        ({"messages": [{"role": "user", "content": "x"}]}, "end with an answer"),
        ({"messages": [{"role": "user", "content": 3}]}, r"messages\[0\]"),
        ({"sampling": {"temprature": 1}}, "did you mean temperature"),
        ({"sampling": {"top_p": "high"}}, "sampling: expected `float`"),
        ({"sampling": {"top_p": 2}}, "top_p = 2.0 is out of range"),
        ({"strata_chat": 9}, "schema 9"),
        ({"seed": -1}, "out of range"),
        ({"think_budget": 0}, "thinking budget"),
        ({"surplus": 1}, "surplus"),
    ],
)
def test_a_file_that_is_not_right_is_refused_with_the_reason(tmp_path, change, says):
    path = tmp_path / "talk.json"
    talk().save(path, "demo")
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UsageError, match=says):
        Conversation.load(path)


def test_no_file_and_no_json(tmp_path):
    with pytest.raises(StrataError, match="No such file"):
        Conversation.load(tmp_path / "none.json")
    (tmp_path / "x").write_text("hello")
    with pytest.raises(UsageError, match="no saved conversation"):
        Conversation.load(tmp_path / "x")


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("temperature", "0", 0.0),
        ("top_k", "40", 40),
        ("max_tokens", "12", 12),
        ("max_tokens", "null", None),
        ("stop", "END", ("END",)),
        ("ignore_eos", "true", True),
        ("seed", "18446744073709551615", 2**64 - 1),
        ("temperature", "default", 0.6),
    ],
)
def test_set_reads_a_value(key, text, value):
    conversation = Conversation(SamplingParams(temperature=0.9), seed=7)
    conversation.set(key, text, DEFAULTS)
    assert conversation.get(key) == value or tuple(conversation.get(key)) == value
    assert conversation.params.seed is None


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("temperature", "-1"),
        ("temperature", "nan"),
        ("temperature", "warm"),
        ("top_p", "0"),
        ("top_k", "1.5"),
        ("seed", "-3"),
        ("seed", str(2**64)),
        ("max_tokens", "0"),
        ("temprature", "1"),
        ("spec", "1"),
        ("logprobs", "3"),
    ],
)
def test_set_refuses_in_one_line_and_changes_nothing(key, text):
    conversation = Conversation(DEFAULTS, seed=7)
    with pytest.raises(UsageError) as refused:
        conversation.set(key, text, DEFAULTS)
    assert key in str(refused.value) and "\n" not in str(refused.value)
    assert (conversation.params, conversation.seed) == (DEFAULTS, 7)


def test_a_default_seed_is_a_fresh_one():
    conversation = Conversation(DEFAULTS, seed=7)
    conversation.set("seed", "default", DEFAULTS)
    assert conversation.seed != 7


def test_retake_needs_an_answer():
    with pytest.raises(UsageError, match="no answer"):
        Conversation(DEFAULTS, seed=7).retake()
    conversation = talk()
    conversation.retake()
    assert conversation.messages[-1] == Message("user", "two") and conversation.attempt == 1
