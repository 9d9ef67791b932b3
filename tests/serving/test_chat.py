"""Chat templates without TensorFlow: the prompts of `transformers`, and templates that do not behave."""

import datetime
import json
import pathlib

import pytest

from keras_transformer_serving.text.chat import ChatTemplate, is_conversation

pytest.importorskip("jinja2")

# Written by benchmarks/parity/chat_templates.py.
STORED = json.loads((pathlib.Path(__file__).parent / "chat_templates.json").read_text(encoding="utf-8"))
USER = [{"role": "user", "content": "Hello"}]


def stored_template(name):
    return ChatTemplate(STORED["templates"][name], special_tokens=STORED["special_tokens"])


@pytest.mark.parametrize("name", STORED["templates"])
def test_prompts_and_errors_equal_transformers(name):
    template, cases = stored_template(name), [each for each in STORED["cases"] if each["template"] == name]
    assert len(cases) > 40
    for case in cases:
        messages = STORED["conversations"][case["conversation"]]
        if "prompt" in case:
            assert template.render(messages, **case["arguments"]) == case["prompt"]
            continue
        with pytest.raises(ValueError, match="`messages` must .*Received: messages") as caught:
            template.render(messages, **case["arguments"])
        is_its_own = not case["error"].startswith("continue_final_message")
        assert case["error"] in str(caught.value) or not is_its_own


@pytest.mark.parametrize("case", STORED["selections"], ids=lambda case: str(case["arguments"]))
def test_the_selected_template_equals_transformers(case):
    named = {name: text for name, text in STORED["named"].items() if name == "rag"}
    template = ChatTemplate(STORED["named"]["default"], STORED["named"]["tool_use"], named=named)
    prompt = template.render(STORED["conversations"]["user"], **case["arguments"])
    assert prompt == case["prompt"]
    again = ChatTemplate.of(template.get_config(), {})
    assert again.render(STORED["conversations"]["user"], **case["arguments"]) == prompt


def test_a_name_that_is_no_template_is_rejected():
    with pytest.raises(ValueError, match=r"a template among \['default'\], or a template in Jinja.*'rga'"):
        ChatTemplate("{{ messages }}").render(USER, chat_template="rga")
    with pytest.raises(
        ValueError, match="`chat_template` must be a template in Jinja. Received: chat_template='rag'"
    ):
        ChatTemplate.of("rag", {})


def test_strftime_now_is_the_present_time():
    assert ChatTemplate("{{ strftime_now('%Y') }}").render(USER) == f"{datetime.datetime.now():%Y}"


def test_a_generation_prompt_and_the_end_of_a_message_exclude_each_other():
    template = stored_template("smollm")
    messages = [*USER, {"role": "assistant", "content": "I am"}]
    assert template.render(messages, continue_final_message=True).endswith("assistant\nI am")


def test_tools_choose_their_template():
    template = ChatTemplate("plain", "with {{ tools | length }} tools")
    assert template.render(USER) == "plain"
    assert template.render(USER, []) == "with 0 tools"
    assert template.render(USER, [{"type": "function"}]) == "with 1 tools"
    assert ChatTemplate("plain").render(USER, [{"type": "function"}]) == "plain"


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{{ ''.__class__.__base__ }}", "unsafe"),
        ("{{ raise_exception.__globals__['os'] }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{% for i in range(10**9) %}{% endfor %}", "range"),
        ("{% import 'os' as os %}", "no loader"),
        ("{% include '/etc/passwd' %}", "no loader"),
        ("{{ open('/etc/passwd') }}", "'open' is undefined"),
        ("{{ messages[0].content | shell }}", "No filter named 'shell'"),
        ("{{ messages[0].name.first }}", "has no attribute 'name'"),
        ("{% for m in messages %}", "endfor"),
        ("{{ 1 / 0 }}", "division by zero"),
    ],
)
def test_templates_that_do_not_behave_raise_a_clear_error(template, reason):
    with pytest.raises(ValueError, match="that the chat template can render: .*Received: messages") as caught:
        ChatTemplate(template).render(USER)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("messages", "error", "message"),
    [
        ([], ValueError, "at least one message"),
        ("Hello", TypeError, "list of messages"),
        ({"role": "user", "content": "Hello"}, TypeError, "list of messages"),
        (["Hello"], TypeError, "list of messages"),
        ([{"content": "Hello"}], ValueError, 'a "role", a string'),
        ([{"role": 1, "content": "Hello"}], ValueError, 'a "role", a string'),
        ([{"role": "user"}], ValueError, 'a "content"'),
        ([{"role": "user", "content": None}], ValueError, 'a "content"'),
        ([{"role": "user", "content": 3}], ValueError, 'a "content"'),
    ],
)
def test_invalid_messages_raise_errors(messages, error, message):
    with pytest.raises(error, match=f"`messages` must .*{message}.*Received: messages"):
        stored_template("phi3").render(messages)


def test_a_message_without_content_may_have_other_keys():
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    assert "f" in stored_template("llama3").render([*USER, call, {"role": "tool", "content": "1"}])


@pytest.mark.parametrize("tools", ["f", [len], {"type": "function"}])
def test_tools_are_json_schemas(tools):
    with pytest.raises(
        TypeError, match="`tools` must be a list of JSON schemas of functions. Received: tools="
    ):
        stored_template("qwen").render(USER, tools)


def test_lists_of_conversations_are_not_conversations():
    assert is_conversation(USER)
    assert is_conversation({"messages": USER, "tools": []})
    assert not any(map(is_conversation, ("Hello", ["Hello"], [USER], [{"messages": USER}], [], [1, 2], None)))


def test_templates_are_restored_from_their_config():
    template = ChatTemplate("a", "b", {"bos_token": "<s>"})
    assert ChatTemplate.of(json.loads(json.dumps(template.get_config())), {}) == template
    assert ChatTemplate.of("{# #}a", {"bos_token": "<s>"}) == ChatTemplate(
        "{# #}a", special_tokens={"bos_token": "<s>"}
    )
    for wrong in (3, ["a"], {"text": "a"}):
        with pytest.raises(TypeError, match="`chat_template` must be a string or a ChatTemplate. Received"):
            ChatTemplate.of(wrong, {})
