"""A conversation with real weights: its tokens follow from messages, settings and seed, not from how it was decoded."""

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from strata_cli import app
from strata_cli.chat.conversation import Conversation, answer_seed
from strata_cli.chat.dialogue import Dialogue
from strata_cli.config import EngineConfig, SamplingParams
from strata_cli.session import Session, load_session, read_checkpoint
from tests.chat_fake import FakeScreen, contents
from tests.support.tiny import make_tiny, make_tokenizer

PARAMS = SamplingParams(temperature=0.8, top_k=30, max_tokens=40, ignore_eos=True)
THINKING = "{% if add_generation_prompt and enable_thinking %}<think>\n{% endif %}"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = make_tokenizer(make_tiny(tmp_path_factory.mktemp("tiny") / "model", seed=5))
    with (directory / "chat_template.jinja").open("a") as template:
        template.write(THINKING)
    return directory


@pytest.fixture(scope="module")
def session(model: Path) -> Iterator[Session]:
    with load(model) as opened:
        yield opened


def load(model: Path, **settings: object) -> Session:
    config = EngineConfig(ctx=2048, **settings)  # type: ignore[arg-type]
    return load_session(read_checkpoint(str(model), config), config)


def talk(session: Session, picks: tuple[int | None, ...] = (), params: SamplingParams = PARAMS, **state) -> Dialogue:
    return Dialogue(session, Conversation(params, seed=7, **state), FakeScreen(picks))


def tokens(dialogue: Dialogue) -> list[list[int]]:
    return [answer.result.token_ids for answer in dialogue.screen.ended]


@pytest.mark.parametrize("settings", [{}, {"batch": 1, "spec": 0, "prefix_cache": False}, {"mtp_varlen": False}])
def test_a_loaded_conversation_goes_on_with_the_same_tokens(session, model, tmp_path, settings):
    mine = talk(session, system="be kind")
    mine.say("one")
    mine.regen()
    mine.say("two")
    mine.save(tmp_path / "talk.json")
    mine.say("three")
    expected = [tokens(mine)]
    mine.regen()
    expected.append(tokens(mine))
    assert expected[0] != expected[1]
    with load(model, **settings) as other_session:
        other = talk(other_session, params=SamplingParams())
        other.load(tmp_path / "talk.json")
        other.say("three")
        got = [tokens(other)]
        other.regen()
        assert [*got, tokens(other)] == expected
        assert contents(other) == contents(mine)


def test_candidates_are_what_each_seed_gives_alone(session):
    four = talk(session, picks=(2,), n=4)
    four.say("hello")
    alone = []
    for candidate in range(4):
        one = talk(session)
        one.conversation.seed = answer_seed(7, candidate, 0)
        one.say("hello")
        alone += tokens(one)
    assert tokens(four) == alone and len({tuple(ids) for ids in alone}) == 4
    assert four.conversation.messages[1].content == four.screen.ended[2].text


def test_a_thinking_budget_does_not_depend_on_the_drafts(model):
    with load(model, mtp_varlen=False) as session:
        reference = talk(session, think=True)  # the same text without a budget
        reference.say("why")
        seen = []
        for spec in (0, 2, 4):
            opened = talk(session, think=True, think_budget=7)
            opened.conversation.set_spec(spec)
            opened.say("why")
            (answer,) = opened.screen.ended
            assert answer.forced_close and answer.splitter.thinking_tokens == 7
            assert answer.rows > answer.windows if spec else answer.rows == answer.windows
            seen.append(answer)
    ids = seen[0].result.token_ids
    assert [answer.result.token_ids for answer in seen] == [ids] * 3
    assert ids[:7] == tokens(reference)[0][:7] and len(ids) == PARAMS.max_tokens
    assert seen[0].text and reference.screen.ended[0].reasoning.startswith(seen[0].reasoning)


def test_later_turns_take_the_conversation_from_the_prefix_cache(session):
    long = talk(session)
    long.say("word " * 60)
    long.say("and")
    (answer,) = long.screen.ended
    assert answer.result.cached_tokens >= 64 and answer.result.cached_tokens < answer.result.prompt_tokens


def test_windows_tell_rows_and_keeps(session):
    one = talk(session)
    one.say("hello")
    (answer,) = one.screen.ended
    assert answer.keeps == answer.result.spec.keeps == len(answer.result.token_ids) - 1  # one from the prompt's rows
    assert answer.windows == answer.result.spec.windows and answer.rows >= answer.windows


def test_an_interrupted_answer_is_a_beginning_of_the_whole_one(session):
    whole = talk(session)
    whole.say("hello")
    cut = talk(session)
    left = [4]

    def tick() -> None:
        left[0] -= 1
        if left[0] == 0:
            signal.raise_signal(signal.SIGINT)

    cut.screen.on_tick = tick
    cut.say("hello")
    message = cut.conversation.messages[1]
    assert message.interrupted and message.content and len(message.content) < len(contents(whole)[1])
    ids = tokens(cut)[0]
    assert ids == tokens(whole)[0][: len(ids)]
    assert not session.engine.has_work


@pytest.fixture
def chat(model: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    monkeypatch.setattr("sys.stdin", open("/dev/null"))  # noqa: SIM115

    def run(*args: object) -> str:
        code = app.run([str(a) for a in args])
        out, err = capfd.readouterr()
        assert code == 0, err
        return out

    return run


def test_one_question_is_what_run_answers(model, chat, tmp_path):
    sampling = ["-m", model, "--seed", 3, "--temperature", 0.9, "--max-tokens", 24, "--ctx", 512]
    record = json.loads(chat("chat", *sampling, "--json", "--logprobs", 2, "hello"))
    (tmp_path / "p.jsonl").write_text(json.dumps({"messages": [{"role": "user", "content": "hello"}]}) + "\n")
    ran = json.loads(chat("run", tmp_path / "p.jsonl", *sampling, "--simple", "--with-tokens", "--logprobs", 2))
    assert (record["text"], record["finish_reason"], record["seed"]) == (ran["text"], ran["finish_reason"], 3)
    assert [entry["token_id"] for entry in record["logprobs"]] == ran["token_ids"]
    assert record["usage"]["completion_tokens"] == ran["completion_tokens"]
    assert chat("chat", *sampling, "hello").rstrip("\n") == ran["text"].rstrip("\n")
