"""Lines of a prompts file and of a results file (bad lines: tests/cli/test_bad_input.py)."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_cli.batch.records import parse, parse_line
from strata_cli.batch.results import RecordWriter
from strata_cli.config import SamplingParams
from strata_cli.engine.types import Result, SpecStats, Timings, TokenLogprob
from strata_cli.errors import UsageError

EVERY = {
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 5,
    "min_p": 0.1,
    "repetition_penalty": 1.1,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "logit_bias": {"7": 3, "2": -100},
    "seed": 2**64 - 1,
    "max_tokens": 9,
    "stop": ["a", "b"],
    "stop_token_ids": [4],
    "logprobs": 3,
    "ignore_eos": True,
    "spec": 2,
    "drafter": "off",
}


def test_every_sampling_parameter_can_be_set_by_a_line():
    assert set(EVERY) == {f for f in SamplingParams.__dataclass_fields__}
    params = SamplingParams(**parse_line(json.dumps({"prompt": "x", **EVERY}).encode(), 1).params)
    assert params.logit_bias == ((2, -100.0), (7, 3.0))
    assert (params.stop, params.stop_token_ids, params.seed, params.temperature) == (("a", "b"), (4,), 2**64 - 1, 0.5)
    body = {"custom_id": "x", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x", **EVERY}}
    assert SamplingParams(**parse_line(json.dumps(body).encode(), 1).params) == params


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"stop": "x"}, {"stop": ("x",)}),
        ({"max_completion_tokens": 4}, {"max_tokens": 4}),
        ({"max_completion_tokens": 4, "max_tokens": 4}, {"max_tokens": 4}),
        ({"logprobs": True}, {"logprobs": 0}),
        ({"logprobs": True, "top_logprobs": 5}, {"logprobs": 5}),
        ({"logprobs": False}, {}),
        ({"logprobs": 0}, {"logprobs": 0}),
        ({"temperature": 1}, {"temperature": 1.0}),
        ({"seed": None, "stop": None}, {}),
        ({"response_format": {"type": "text"}}, {}),
    ],
)
def test_other_ways_to_say_it(given, expected):
    assert parse_line(json.dumps({"prompt": "x", **given}).encode(), 1).params == expected


def test_ids():
    lines = [{"prompt": "x"}, {"prompt": "x", "id": 7}, {"prompt": "x", "custom_id": "c", "id": "i"}]
    data = b"\n\n".join(json.dumps(line).encode() for line in lines)
    assert [(r.id, r.line) for r in parse(data, "f")] == [("line-1", 1), ("7", 3), ("c", 5)]


def test_text_parts_are_joined():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    record = parse_line(json.dumps({"messages": [{"role": "user", "content": parts}]}).encode(), 1)
    assert record.prompt == [{"role": "user", "content": "ab"}]
    assert record.is_chat


def test_a_byte_order_mark_and_crlf_are_no_faults():
    assert [r.prompt for r in parse(b'\xef\xbb\xbf{"prompt": "x"}\r\n{"prompt": "y"}\r\n', "f")] == ["x", "y"]


@given(st.binary(max_size=60))
def test_any_bytes_are_records_or_a_usage_error(data):
    try:
        assert parse(data, "f")
    except UsageError as fault:
        assert fault.what.startswith("f:")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
keys = st.sampled_from(["prompt", "messages", "body", "id", "custom_id", "url", "n", "top_logprobs", *EVERY])


@given(st.dictionaries(keys, json_values, max_size=4))
def test_any_values_are_a_record_or_a_usage_error(line):
    try:
        (record,) = parse(json.dumps(line).encode(), "f")
        SamplingParams(**record.params)
    except UsageError as fault:
        assert fault.what.startswith("f:1: ")


def result(**changes):
    spec = SpecStats()
    for drafted, accepted in ((3, 3), (3, 1), (3, 0)):
        spec.record(drafted, drafted, accepted, accepted + 1)
    fields = {
        "request_id": "r",
        "token_ids": [1, 2, 3],
        "finish_reason": "stop",
        "prompt_tokens": 4,
        "cached_tokens": 2,
        "seed": 9,
        "timings": Timings(1, 2, 3, 4, 5, 500.12345),
        "spec": spec,
    }
    return Result(**{**fields, **changes})


class Letters:
    def decode(self, ids, skip_special=True):
        return "".join("abcdef"[i] for i in ids)


def written(record, **how):
    how = {"model": "m", "simple": True, "with_tokens": False, "decoder": Letters(), **how}
    line = RecordWriter(**how).line(parse_line(b'{"messages": [{"role": "user", "content": "x"}]}', 3), *record)
    assert line.count(b"\n") == 1
    return json.loads(line)


def test_figures_of_a_record():
    record = written((result(), "text", 0))
    assert record["custom_id"] == "line-3"
    assert record["timings"] == {
        "queue_ms": 1, "prefill_ms": 2, "ttft_ms": 3, "decode_ms": 4, "total_ms": 5, "decode_tok_s": 500.123
    }  # fmt: skip
    assert record["spec"] == {
        "windows": 3,
        "drafted": 9,
        "verified": 9,
        "accepted": 4,
        "acceptance_rate": 0.4444,
        "mean_acceptance_length": 2.3333,
        "per_position": [0.6667, 0.3333, 0.3333],
        "conditional": [0.6667, 0.5, 1.0],
    }
    assert "token_ids" not in record
    assert "logprobs" not in record


def test_log_probabilities():
    entry = TokenLogprob(1, -0.5, ((1, -0.5), (2, -1.5)))
    top = [{"token": "b", "token_id": 1, "logprob": -0.5}, {"token": "c", "token_id": 2, "logprob": -1.5}]
    record = written((result(logprobs=[entry]), "text", 0))
    assert record["logprobs"] == [{"token": "b", "token_id": 1, "logprob": -0.5, "top": top}]
    body = written((result(logprobs=[entry]), "text", 0), simple=False)["response"]["body"]
    content = body["choices"][0]["logprobs"]["content"]
    assert content == [{"token": "b", "token_id": 1, "logprob": -0.5, "top_logprobs": top}]


def test_openai_shape_splits_thinking_and_counts_cached_tokens():
    body = written((result(), "why\n</think>\n\nbecause", 77, True), simple=False)["response"]["body"]
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "because", "reasoning_content": "why"}
    assert body["created"] == 77
    assert body["usage"] == {
        "prompt_tokens": 4,
        "completion_tokens": 3,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 2},
    }


def test_a_record_is_one_line_for_every_reader():
    text = "a\u2028b\u2029c\u0085d\x0be\nf\rg"
    line = RecordWriter("m", True, False).line(parse_line(b'{"prompt": "x"}', 1), result(), text, 0)
    assert len(line.decode().splitlines()) == 1
    assert json.loads(line)["text"] == text
