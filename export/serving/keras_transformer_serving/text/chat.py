"""Chat templates of `transformers`: from messages to the text of a prompt."""

import dataclasses
import datetime
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any, Self

FILE = "chat_template.jinja"
_SHOWN = 80  # characters of a value in an error


@dataclasses.dataclass(frozen=True)
class ChatTemplate:
    """A chat template of `transformers`, rendered by Jinja's sandbox.

    Args:
        default: the template, in Jinja.
        tool_use: the template for conversations with tools, by default the same.
        special_tokens: the names and texts of tokens that templates may use, such as {"bos_token": "<s>"}.
        named: other templates by name, such as {"rag": …}, which `render(…, chat_template="rag")` selects.

    Example:
        >>> template = ChatTemplate("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}")
        >>> template.render([{"role": "user", "content": "Hello"}])
        '<|user|>Hello'
    """

    default: str
    tool_use: str | None = None
    special_tokens: Mapping[str, str] = dataclasses.field(default_factory=dict)
    named: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, value: Any, special_tokens: Mapping[str, str]) -> Self | None:
        """Return the chat template of an argument: one, its config, its text, or None.

        Args:
            value: the argument.
            special_tokens: the special tokens of a template without any.

        Raises:
            ValueError: if it is a text without the braces of a template, such as a name.
        """
        if value is None:
            return None
        names = {field.name for field in dataclasses.fields(cls)}
        if isinstance(value, str):
            template = cls(_checked(value, []))
        elif isinstance(value, Mapping) and value.keys() <= names:
            template = cls(**value)
        elif isinstance(value, cls):
            template = value
        else:
            raise TypeError(
                f"`chat_template` must be a string or a ChatTemplate. Received: chat_template={value!r}"
            )
        tokens = template.special_tokens or special_tokens
        return dataclasses.replace(template, special_tokens=dict(tokens))

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return dataclasses.asdict(self)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        **variables: Any,
    ) -> str:
        """Return the text of a conversation.

        Args:
            messages: the messages, each with a "role", such as "user", and a "content": a string or, if the template
                takes them, parts such as {"type": "text", "text": "Hello"}. A message may have other keys, such as
                "tool_calls", instead of a content.
            tools: the JSON schemas of functions that the model may call. With any list of them, also an empty one, the
                template `tool_use` is used.
            add_generation_prompt: whether to end with the beginning of the model's turn.
            continue_final_message: whether the model continues the last message: the text then ends with its content.
            chat_template: the name of a template, such as "rag", or a template; by default that of the conversation.
            **variables: other variables of the template.

        Raises:
            ImportError: if Jinja is not installed.
            ValueError: if there is no message, or one has no role or content; or if the template raises an
                error, is not valid, or uses a name or an attribute that it must not.
        """
        _check_messages(messages)
        _check_tools(tools)
        text = self._template(tools, chat_template)
        try:
            rendered: str = _compiled(text).render(
                {
                    **self.special_tokens,
                    "messages": messages,
                    "tools": tools,
                    "documents": None,
                    "add_generation_prompt": add_generation_prompt and not continue_final_message,
                    **variables,
                }
            )
        except ImportError:
            raise
        except Exception as error:  # of any class: a template is a program
            reason = str(error).removesuffix(".")
            raise ValueError(
                f"`messages` must be a conversation that the chat template can render: {reason}. "
                f"Received: messages={_shown(messages)}"
            ) from error
        return _without_end(rendered, messages[-1]) if continue_final_message else rendered

    def _template(self, tools: Any, name: str | None) -> str:
        """Return the template of a conversation, or the one of a name."""
        if name is None:
            return self.default if tools is None or self.tool_use is None else self.tool_use
        templates = {"default": self.default, **self.named}
        if self.tool_use is not None:
            templates["tool_use"] = self.tool_use
        return templates[name] if name in templates else _checked(name, [*templates])


class Chat:
    """Mixin of pipelines that take conversations in place of texts."""

    chat_template: ChatTemplate | None

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        **variables: Any,
    ) -> str:
        """Return the text of a conversation by the model's chat template, as in `transformers`.

        Args:
            messages: the messages, each with a "role" and a "content"; see `ChatTemplate.render`.
            tools: the JSON schemas of functions that the model may call.
            add_generation_prompt: whether to end with the beginning of the model's turn.
            continue_final_message: whether the model continues the last message: the text then ends with its content.
            chat_template: the name of a template, such as "rag", or a template; see `ChatTemplate.render`.
            **variables: other variables of the template, such as `enable_thinking`.

        Raises:
            ImportError: if Jinja is not installed.
            ValueError: if there is no chat template, or as `ChatTemplate.render`.

        Example:
            >>> chat.apply_chat_template([{"role": "user", "content": "Hello"}])  # doctest: +SKIP
            '<|user|>Hello<|end|><|assistant|>'
        """
        if self.chat_template is None:
            raise ValueError(
                "`messages` must be for a pipeline with a chat template. Received: a pipeline with chat_template=None"
            )
        return self.chat_template.render(
            messages, tools, add_generation_prompt, continue_final_message, chat_template, **variables
        )

    def _text_of(self, conversation: Any) -> str:
        """Return the text of a list of messages, or of a mapping with arguments of `apply_chat_template`."""
        return self.apply_chat_template(**_arguments(conversation))


def _checked(text: Any, names: list[str]) -> str:
    """Return a template, or raise an error for another text or type."""
    if isinstance(text, str) and "{" in text:
        return text
    expected = f"the name of a template among {names}, or " if names else ""
    raise ValueError(
        f"`chat_template` must be {expected}a template in Jinja. Received: chat_template={_shown(text)}"
    )


def is_conversation(value: Any) -> bool:
    """Return whether a value is one conversation: a list of messages, or a mapping with "messages"."""
    if isinstance(value, Mapping):
        return True
    is_list = isinstance(value, list | tuple) and len(value) > 0
    return is_list and isinstance(value[0], Mapping) and "messages" not in value[0]


def _arguments(value: Any) -> dict[str, Any]:
    """Return the arguments of `apply_chat_template` for a conversation; the model continues its own last message."""
    if isinstance(value, Mapping) and "messages" not in value:
        raise ValueError(f'`texts` must have "messages" in each conversation. Received: {_shown(value)}')
    arguments = dict(value) if isinstance(value, Mapping) else {"messages": value}
    _check_messages(arguments["messages"])
    is_own = arguments["messages"][-1]["role"] == "assistant"
    return {"continue_final_message": is_own, **arguments}


def _check_messages(messages: Any) -> None:
    if not isinstance(messages, list | tuple) or not all(
        isinstance(message, Mapping) for message in messages
    ):
        raise TypeError(
            '`messages` must be a list of messages such as {"role": "user", "content": "Hello"}. '
            f"Received: messages={_shown(messages)}"
        )
    if not messages:
        raise ValueError("`messages` must have at least one message. Received: messages=[]")
    for index, message in enumerate(messages):
        if not isinstance(message.get("role"), str):
            raise ValueError(
                f'`messages` must each have a "role", a string. Received: messages[{index}]={_shown(message)}'
            )
        content = message.get("content")
        has_other = content is None and len(message) > len({"role", "content"} & message.keys())
        if not isinstance(content, str | list | tuple) and not has_other:
            raise ValueError(
                '`messages` must each have a "content", a string or a list of parts. '
                f"Received: messages[{index}]={_shown(message)}"
            )


def _check_tools(tools: Any) -> None:
    is_valid = isinstance(tools, list | tuple) and all(isinstance(tool, Mapping) for tool in tools)
    if tools is not None and not is_valid:
        raise TypeError(
            f"`tools` must be a list of JSON schemas of functions. Received: tools={_shown(tools)}"
        )


def _without_end(rendered: str, message: Mapping[str, Any]) -> str:
    """Return a rendered conversation up to the end of the content of its last message.

    Raises:
        ValueError: if the content is not in it as it is.
    """
    content = message.get("content") or ""
    if not isinstance(content, str):
        texts = [part["text"] for part in content if isinstance(part, Mapping) and "text" in part]
        content = texts[-1] if texts else ""
    start = rendered.rfind(content.strip())
    if not content.strip() or start < 0:
        raise ValueError(
            "`messages` must end with a text that the chat template does not change, to be continued. "
            f"Received: messages[-1]={_shown(message)}"
        )
    for text in (content.lstrip(), content.strip()):  # some templates strip contents
        if rendered.startswith(text, start):
            break
    return rendered[: start + len(text)]


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


@functools.lru_cache(maxsize=32)
def _compiled(text: str) -> Any:
    """Return a template of the sandbox."""
    environment = _environment()
    return environment.from_string(text)


@functools.cache
def _environment() -> Any:
    """Return Jinja's environment with the functions, the filter and the tag that templates use."""
    try:
        from jinja2 import TemplateError, ext, nodes
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ModuleNotFoundError as error:
        raise ImportError("a chat template requires Jinja, the extra [chat]: pip install jinja2") from error

    class GenerationTag(ext.Extension):  # type: ignore[misc]
        """The tag around what the model has generated, which training reads and a prompt does not need."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body).set_lineno(line)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def to_json(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """Return a value as JSON; Jinja's filter would escape characters of HTML."""
        options: dict[str, Any] = {"indent": indent, "separators": separators, "sort_keys": sort_keys}
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, ext.loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda format: datetime.datetime.now().strftime(format)  # noqa: A006
    return environment
