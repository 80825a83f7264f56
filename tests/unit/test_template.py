"""Chat templates give what transformers gives."""

from datetime import datetime

import pytest
from transformers import PreTrainedTokenizerFast

from strata_cli.errors import UsageError
from strata_cli.text.template import ChatTemplate

CHATML = """{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] | trim + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

THINKING = """{% set ns = namespace(last=-1) %}
{% macro text(content) %}
  {%- if content is string -%}{{ content }}
  {%- elif content is mapping -%}{{ content.text }}
  {%- else -%}{% for part in content %}{{ part.text }}{% endfor %}
  {%- endif -%}
{% endmacro %}
{% for m in messages %}
  {% if m.role == 'user' %}
    {% set ns.last = loop.index0 %}
  {% endif %}
{% endfor %}
{% if ns.last < 0 %}{{ raise_exception('No user turn.') }}{% endif %}
{% for m in messages %}
{{ bos_token if loop.first }}[{{ m.role }}]
{% if m.reasoning_content and loop.index0 > ns.last %}
<think>{{ m.reasoning_content }}</think>
{% endif %}
{% if m.role == 'skip' %}{% continue %}{% endif %}
{{ text(m.content) }}{{ eos_token }}
{% endfor %}
{% if add_generation_prompt %}
[assistant]
{% if enable_thinking is defined and enable_thinking is false %}
<think></think>
{% else %}
<think>
{% endif %}
{% endif %}"""

JSON = """{% for m in messages %}
    {% generation %}
        {% set mark = '>' %}
{{ mark }}{{ m | tojson }}|{{ m.content | tojson(indent=2) }}
    {% endgeneration %}
    {% if loop.index > 2 %}{% break %}{% endif %}
{% endfor %}
{{ 'tools' if tools else 'none' }}"""

CHATS = {
    "one": [{"role": "user", "content": "  Hello <b>& 'ä' \u4e2d</b>\n"}],
    "system": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi\n\nthere"}],
    "turns": [
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": "2", "reasoning_content": "easy"},
        {"role": "user", "content": "+ 1?"},
        {"role": "assistant", "content": "3", "thinking": "still easy"},
    ],
}


@pytest.fixture(scope="module")
def reference(byte_tokenizer):
    return PreTrainedTokenizerFast(
        tokenizer_object=byte_tokenizer._backend, bos_token="<|im_start|>", eos_token="<|im_end|>"
    )


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize(("name", "source"), [("chatml", CHATML), ("thinking", THINKING), ("json", JSON)])
@pytest.mark.parametrize("variables", [{}, {"enable_thinking": False}, {"add_generation_prompt": False}])
def test_renders_as_transformers_does(reference, name, source, chat, variables):
    expected = reference.apply_chat_template(
        CHATS[chat], chat_template=source, tokenize=False, **{"add_generation_prompt": True, **variables}
    )
    ours = ChatTemplate(source, {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"})
    assert ours.render(CHATS[chat], **variables) == expected
    assert expected.strip()


def test_the_templates_own_refusal_reaches_the_user():
    with pytest.raises(UsageError, match=r"No user turn\."):
        ChatTemplate(THINKING).render([{"role": "system", "content": "x"}])


def test_a_broken_template_is_named():
    with pytest.raises(UsageError, match=r"file\.jinja"):
        ChatTemplate("{% if %}", place="file.jinja")


@pytest.mark.parametrize(
    "source, what",
    [
        ("{{ 1 / 0 }}", "ZeroDivisionError: division by zero"),
        ("{% for i in range(99999999999) %}{% endfor %}", "OverflowError: Range too big"),
        ("{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}", "RecursionError: "),
        ("{{ none + 1 }}", "TypeError: "),
        ("{{ '\\ud800' }}", "UnicodeEncodeError: "),
        ("{{ [].index(3) }}", "ValueError: "),
        ("{{ 'x'.encode().decode('utf-7x') }}", "LookupError: "),
        ("{{ raise_exception('two\\nlines') }}", "two lines"),
    ],
)
def test_whatever_a_template_raises_is_one_line_that_names_it(source, what):
    with pytest.raises(UsageError) as raised:
        ChatTemplate(source, place="file.jinja").render([])
    assert raised.value.what.startswith(f"file.jinja refuses the messages: {what}") and "\n" not in raised.value.what


def test_a_template_too_deep_to_compile():
    with pytest.raises(UsageError, match=r"file\.jinja: RecursionError: "):
        ChatTemplate("{{ " + "(" * 100_000 + " }}", place="file.jinja")


@pytest.mark.parametrize(
    "name, content, what",
    [
        ("tokenizer_config.json", b"[]", "must be a JSON object, found list"),
        ("tokenizer_config.json", b"[" * 100_000, "nested too deeply"),
        ("tokenizer_config.json", b"{", "not valid JSON"),
        ("tokenizer_config.json", b'{"chat_template": 5}', "chat_template = 5: must be a string"),
        ("tokenizer_config.json", b'{"chat_template": [{"name": "default", "template": [5]}]}', "must be a string"),
        ("tokenizer_config.json", None, "is not a file"),
        ("chat_template.jinja", b"\xff", "not UTF-8 at byte 0"),
        ("chat_template.jinja", None, "is not a file"),
    ],
)
def test_files_that_are_damaged(tmp_path, name, content, what):
    path = tmp_path / name
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(UsageError) as raised:
        ChatTemplate.load(tmp_path)
    assert f"{path}" in raised.value.what and what in raised.value.what


@pytest.mark.parametrize("entries", ['[{"name": "x"}]', "[5]", "[]", '[{"name": "default"}]'])
def test_named_templates_without_a_default(tmp_path, entries):
    (tmp_path / "tokenizer_config.json").write_text(f'{{"chat_template": {entries}, "a_token": {{}}}}')
    assert ChatTemplate.load(tmp_path) is None


def test_the_sandbox_holds():
    with pytest.raises(UsageError, match="unsafe"):
        ChatTemplate("{{ ''.__class__.__mro__ }}").render([])


def test_today():
    assert ChatTemplate("{{ strftime_now('%Y') }}").render([]) == datetime.now().strftime("%Y")


def test_which_file_a_checkpoint_uses(tmp_path):
    assert ChatTemplate.load(tmp_path) is None
    config = '{"chat_template": "old {{ eos_token }}{{ bos_token }}", "eos_token": {"content": "E"}, "bos_token": null}'
    (tmp_path / "tokenizer_config.json").write_text(config)
    assert ChatTemplate.load(tmp_path).render([]) == "old E"
    (tmp_path / "chat_template.jinja").write_text("new {{ eos_token }}")
    assert ChatTemplate.load(tmp_path).render([]) == "new E"
