"""Chat templates: the prompts of `transformers`, which tests compare with those of this package.

The templates use what those of published families use, in short: loops with namespaces, alternation of roles, tools,
dates, and the tag around what the model has generated. Each is rendered by `apply_chat_template` for each conversation,
and the prompt, or the message of its error, is written to `tests/serving/chat_templates.json`.
"""

import json
import pathlib
from typing import Any

FILE = pathlib.Path(__file__).parents[2] / "tests" / "serving" / "chat_templates.json"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
TEMPLATES = {
    "llama3": """{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = strftime_now("%%") %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = '' %}
{%- endif %}
{{- '<|header|>system<|end_header|>\\n\\nToday: ' + date_string + '\\n' }}
{%- if tools is not none %}
    {{- 'Functions:\\n' }}
    {%- for tool in tools %}
        {{- tool | tojson(indent=4) }}
        {{- '\\n\\n' }}
    {%- endfor %}
{%- endif %}
{{- system + '<|eot|>' }}
{%- for message in messages %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|header|>' + message['role'] + '<|end_header|>\\n\\n' + message['content'] | trim + '<|eot|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls | length == 1 %}
            {{- raise_exception('One call of a tool at a time!') }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|header|>assistant<|end_header|>\\n\\n' + call.name + (call.arguments | tojson) + '<|eot|>' }}
    {%- else %}
        {{- '<|header|>ipython<|end_header|>\\n\\n' }}
        {%- if message.content is mapping or message.content is iterable and message.content is not string %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- '<|eot|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|header|>assistant<|end_header|>\\n\\n' }}
{%- endif %}
""",
    "mistral": """{%- if messages[0]["role"] == "system" %}
    {%- set system = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set ns = namespace(index=0) %}
{%- for message in loop_messages if message.role in ("user", "assistant") %}
    {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
        {{- raise_exception("After the system message, roles must alternate: user, assistant, user, …") }}
    {%- endif %}
    {%- set ns.index = ns.index + 1 %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message.role == "user" %}
        {%- if tools and loop.last %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, value in tool.function.items() if key != "return" %}
                    {{- '"' + key + '": ' + (value | tojson) }}{{ ", " if not loop.last }}
                {%- endfor %}
                {{- "}}" }}{{ ", " if not loop.last }}
            {%- endfor %}
            {{- "][/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {{- "[INST] " + (system + "\\n\\n" if loop.last and system is defined else "") + message.content + "[/INST]" }}
    {%- elif message.content %}
        {{- " " + message.content | trim + eos_token }}
    {%- endif %}
{%- endfor %}
""",
    "qwen": """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step=true, last=messages | length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages | length - 1) - loop.index0 %}
    {%- if ns.multi_step and message.role == "user" and message.content is string %}
        {%- set ns.multi_step = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set thought = '' %}
        {%- if '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and thought %}
            {{- '<|im_start|>assistant\\n<think>\\n' + thought + '\\n</think>\\n\\n' + content }}
        {%- else %}
            {{- '<|im_start|>assistant\\n' + content }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>\\n{"name": "' ~ call.function.name ~ '", "arguments": ' }}
            {{- call.function.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or messages[loop.index0 - 1].role != "tool" %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != "tool" %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
""",
    "gemma": """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {{ raise_exception('System role not supported') }}
{%- endif -%}
{%- for message in messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\n' }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}
                {{ '<image>' }}
            {%- elif item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\n'}}
{%- endif -%}
""",
    "smollm": """{# A comment #}
{% for message in messages %}
    {% if loop.first and messages[0]['role'] != 'system' %}
        {{ '<|im_start|>system\nBe helpful.<|im_end|>\n' }}
    {% endif %}
    {% if message['role'] == 'assistant' %}
<|im_start|>assistant
        {% generation %}
        {%- set answer = message['content'] -%}
{{ answer }}<|im_end|>
        {% endgeneration %}
    {% else %}
{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}
    {% endif %}
{% endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\n' }}
{% endif %}
""",
    "phi3": """{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}{{'<|system|>
' + message['content'] + '<|end|>
'}}{% elif message['role'] == 'user' %}{{'<|user|>
' + message['content'] + '<|end|>
'}}{% elif message['role'] == 'assistant' %}{{'<|assistant|>
' + message['content'] + '<|end|>
'}}{% else %}{% break %}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>
' }}{% else %}{{ eos_token }}{% endif %}""",
}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Return the weather <now> in “Málaga” & elsewhere.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "the city's name"}},
            "required": ["city"],
        },
    },
}
CALL = {"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Málaga"}}}
USER = {"role": "user", "content": '  Hello, <b>ñandú</b> & "friends"\n'}
ANSWER = {"role": "assistant", "content": "Hi! \n"}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "user": [USER],
    "system": [{"role": "system", "content": "Be brief."}, USER],
    "turns": [USER, ANSWER, {"role": "user", "content": "And now?"}],
    "prefilled": [USER, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nI would "}],
    "two users": [USER, USER],
    "unknown role": [USER, {"role": "wizard", "content": "Abracadabra"}],
    "tool call": [
        USER,
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "22 °C"},
    ],
    "two calls": [USER, {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]}],
    "parts": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": " What is it? "}]}],
}
ARGUMENTS: list[dict[str, Any]] = [
    {"add_generation_prompt": True},
    {"add_generation_prompt": False, "date_string": "26 Jul 2024"},
    {"add_generation_prompt": True, "tools": [TOOL]},
    {"add_generation_prompt": True, "tools": []},
    {"add_generation_prompt": True, "enable_thinking": False},
    {"add_generation_prompt": False, "continue_final_message": True},
]
# Templates of one model by name, and arguments that select one.
NAMED = {
    name: f"{name}: {{{{ messages[0].content }}}}{{{{ tools }}}}" for name in ("default", "tool_use", "rag")
}
SELECTIONS: list[dict[str, Any]] = [
    {},
    {"tools": []},
    {"tools": [{}]},
    {"chat_template": "rag"},
    {"chat_template": "rag", "tools": []},
    {"chat_template": "tool_use"},
    {"chat_template": "default", "tools": [{}]},
    {"chat_template": "{{ messages[0].role }}"},
]


def main() -> None:
    """Render every template for every conversation, and write the prompts."""
    import tokenizers
    import transformers

    cases = []
    for name, template in TEMPLATES.items():
        words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, **TOKENS)
        tokenizer.chat_template = template
        for conversation, messages in CONVERSATIONS.items():
            for arguments in ARGUMENTS:
                if arguments.get("continue_final_message") and not messages[-1]["content"]:
                    continue  # nothing to continue
                case = {"template": name, "conversation": conversation, "arguments": arguments}
                try:
                    prompt = tokenizer.apply_chat_template(messages, tokenize=False, **arguments)
                    cases.append({**case, "prompt": prompt})
                except Exception as error:  # of classes of Jinja and others
                    cases.append({**case, "error": str(error).partition("!")[0]})
    tokenizer.chat_template = NAMED
    selections = [
        {"arguments": each, "prompt": tokenizer.apply_chat_template([USER], tokenize=False, **each)}
        for each in SELECTIONS
    ]
    content = {
        "transformers": transformers.__version__,
        "special_tokens": TOKENS,
        "templates": TEMPLATES,
        "conversations": CONVERSATIONS,
        "cases": cases,
        "named": NAMED,
        "selections": selections,
    }
    FILE.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{len(cases)} cases, {sum('error' in case for case in cases)} errors")


if __name__ == "__main__":
    main()
