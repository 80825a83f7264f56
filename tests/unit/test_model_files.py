"""Small files of a model, damaged in every way: one line that names the file, exit code 2."""

import json
import os

import pytest

from strata_cli.config import EngineConfig, SamplingParams
from strata_cli.engine.drafters.vocab import read_counts
from strata_cli.errors import USAGE, UsageError
from strata_cli.model.config import load_config
from strata_cli.model.files import present, read_object, shown
from strata_cli.session import read_checkpoint, read_defaults
from strata_cli.text.template import ChatTemplate
from tests.cli.fake import make_model

READERS = {
    "config.json": load_config,
    "generation_config.json": read_defaults,
    "tokenizer_config.json": ChatTemplate.load,
    "token_counts.json": read_counts,
}
DAMAGED = {
    "empty": b"",
    "cut": b'{"a": 1',
    "list": b"[1]",
    "null": b"null",
    "deep list": b"[" * 100_000,
    "deep object": b'{"a":' * 100_000,
    "digits": b'{"a": ' + b"9" * 5000 + b"}",
    "binary": b"\xff\xfe",
    "bom": b"\xef\xbb\xbf{}",
}


def line(read, *args):
    """The one line that reading ends with."""
    with pytest.raises(UsageError) as raised:
        read(*args)
    assert raised.value.exit_code == USAGE and "\n" not in str(raised.value)
    assert len(str(raised.value)) < 400
    return raised.value.what


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("damage", DAMAGED)
def test_every_reader_names_a_damaged_file(tmp_path, name, damage):
    (tmp_path / name).write_bytes(DAMAGED[damage])
    assert str(tmp_path / name) in line(READERS[name], tmp_path)


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("kind", ["directory", "loop", "link to nothing", "pipe"])
def test_what_is_not_a_file(tmp_path, name, kind):
    path = tmp_path / name
    if kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(name if kind == "loop" else "elsewhere")
    assert line(READERS[name], tmp_path) == f"{path} is not a file"


def test_a_file_that_is_there_and_one_that_is_not(tmp_path):
    assert not present(tmp_path / "x")
    assert "cannot read" in line(read_object, tmp_path / "x") and "cannot read" in line(read_object, tmp_path)
    (tmp_path / "x").write_text('{"a": "\u00e4"}', encoding="utf-8")
    assert present(tmp_path / "x") and read_object(tmp_path / "x") == {"a": "\u00e4"}


def test_values_are_shown_short():
    assert [shown(value) for value in (1, "x", None, [1])] == ["1", '"x"', "null", "[1]"]
    nested = json.loads("[" * 900 + "]" * 900)
    assert all(len(shown(value)) <= 80 for value in ("x" * 1000, 10**4000, nested, {"a": [nested] * 99}))


@pytest.mark.parametrize(
    "given, what",
    [
        ({"top_k": 1.5}, "top_k = 1.5: must be a whole number"),
        ({"top_k": True}, "top_k = true: must be a whole number"),
        ({"top_k": "5"}, 'top_k = "5": must be a whole number'),
        ({"top_k": 10**30}, "top_k = 1000"),
        ({"top_k": -1}, "top_k = -1 is out of range"),
        ({"max_new_tokens": [5]}, "max_new_tokens = [5]: must be a whole number"),
        ({"max_new_tokens": 0}, "max_tokens = 0 is out of range"),
        ({"temperature": "x"}, 'temperature = "x": must be a number'),
        ({"temperature": 10**400}, "temperature = 1000"),
        ({"temperature": float("inf")}, "temperature = Infinity: must be a number of at most"),
        ({"temperature": float("nan")}, "temperature = nan is out of range"),
        ({"top_p": {}}, "top_p = {}: must be a number"),
        ({"min_p": False}, "min_p = false: must be a number"),
        ({"repetition_penalty": []}, "repetition_penalty = []: must be a number"),
        ({"do_sample": "x"}, 'do_sample = "x": must be true or false'),
    ],
)
def test_values_of_generation_config(tmp_path, given, what):
    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps(given))
    assert line(read_defaults, tmp_path).startswith(f"{path}: {what}")


def test_generation_config_as_it_should_be(tmp_path):
    assert read_defaults(tmp_path) == SamplingParams()
    given = {"temperature": 1, "top_k": 20, "top_p": 0.9, "max_new_tokens": 7, "min_p": None, "pad_token_id": "any"}
    (tmp_path / "generation_config.json").write_text(json.dumps(given))
    assert read_defaults(tmp_path) == SamplingParams(temperature=1, top_k=20, top_p=0.9, max_tokens=7)
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.5, "do_sample": false}')
    assert read_defaults(tmp_path) == SamplingParams(temperature=0.0)


@pytest.mark.parametrize(
    "text",
    ['{"a": 1}', '{"-1": 1}', '{"1": 1.5}', '{"1": Infinity}', '{"1": [1]}', '{"1": true}', f'{{"{"9" * 5000}": 1}}'],
)
def test_counts_of_tokens(tmp_path, text):
    (tmp_path / "token_counts.json").write_text(text)
    assert line(read_counts, tmp_path).startswith(f"{tmp_path / 'token_counts.json'}: ")


def test_counts_as_they_should_be(tmp_path):
    assert read_counts(tmp_path) == {}
    (tmp_path / "token_counts.json").write_text('{"3": 14, "15": 0}')
    assert read_counts(tmp_path) == {3: 14, 15: 0}


def test_what_is_null_is_absent_and_a_folder_is_no_file_of_the_model(tmp_path):
    model = make_model(tmp_path / "model")
    path = model / "config.json"
    top = json.loads(path.read_text())
    plain = {**top, **top.pop("text_config", {})}
    path.write_text(json.dumps(plain))
    before = read_checkpoint(str(model), EngineConfig())
    (model / "notes.json").mkdir()
    assert before.fingerprint() == read_checkpoint(str(model), EngineConfig()).fingerprint()
    for null in (
        {"quantization_config": None},
        {"text_config": None},
        {"quantization_config": {"config_groups": None}},
    ):
        path.write_text(json.dumps({**plain, **null}))
        assert read_checkpoint(str(model), EngineConfig()).format == before.format
