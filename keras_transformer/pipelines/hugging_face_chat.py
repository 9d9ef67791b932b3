"""Chat templates from a folder of Hugging Face's `transformers`."""

import pathlib
from typing import Any

from keras_transformer_serving import files
from keras_transformer_serving.text.chat import FILE, ChatTemplate

DEFAULT = "default"
TEMPLATES = "additional_chat_templates"
PROCESSOR_TEMPLATE = "chat_template.json"
_CONFIG = "tokenizer_config.json"
_MAP = "special_tokens_map.json"
_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_ROLES = {
    "start": "bos_token",
    "end": "eos_token",
    "unknown": "unk_token",
    "pad": "pad_token",
    "mask": "mask_token",
}


def read_chat_template(folder: pathlib.Path, name: str = DEFAULT) -> ChatTemplate | None:
    """Return the chat template of a folder, as `transformers` chooses it, or None if it has none.

    A file `chat_template.jinja` precedes `chat_template.json`, and that `tokenizer_config.json`, whose "chat_template"
    is a template or a list of named ones, among them "default".

    Args:
        folder: the folder.
        name: the name of the template to use by default.

    Raises:
        ValueError: if a file is damaged, or no template has the name.
    """
    config = _read(folder / _CONFIG)
    templates = _templates(folder, config)
    if not templates and name == DEFAULT:
        return None
    if name not in templates:
        raise ValueError(
            f"`{folder}` must have a chat template named {name!r}. Received: {sorted(templates)}"
        )
    tokens = {**_read(folder / _MAP), **config}
    return ChatTemplate(
        templates[name],
        templates.get("tool_use") if name == DEFAULT else None,
        {name: text for name in _TOKENS if (text := _text(tokens.get(name))) is not None},
        {name: template for name, template in templates.items() if name not in (DEFAULT, "tool_use")},
    )


def write_chat_template(template: ChatTemplate, folder: pathlib.Path) -> None:
    """Write the chat templates of a pipeline; their special tokens are those of the tokenizer."""
    (folder / FILE).write_text(template.default, encoding="utf-8")
    others = {**template.named, **({} if template.tool_use is None else {"tool_use": template.tool_use})}
    for name, text in others.items():
        path = folder / TEMPLATES / f"{name}.jinja"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


def special_tokens_of(tokenizer: Any) -> dict[str, str]:
    """Return a tokenizer's special tokens by the names that chat templates use."""
    ids = {role: getattr(tokenizer, f"{role}_id", None) for role in _ROLES}
    return {
        _ROLES[role]: tokenizer.id_to_piece(id_)
        for role, id_ in ids.items()
        if id_ is not None and 0 <= id_ < tokenizer.vocabulary_size
    }


def _templates(folder: pathlib.Path, config: dict[str, Any]) -> dict[str, str]:
    """Return the templates of a folder by name."""
    if (folder / FILE).is_file():
        others = {path.stem: path for path in sorted((folder / TEMPLATES).glob("*.jinja"))}
        named = {DEFAULT: folder / FILE, **others}
        return {name: path.read_text(encoding="utf-8") for name, path in named.items()}
    template = _read(folder / PROCESSOR_TEMPLATE).get("chat_template") or config.get("chat_template")
    if not template:
        return {}
    if isinstance(template, str):
        return {"default": template}
    try:
        return {named["name"]: str(named["template"]) for named in template}
    except (KeyError, TypeError):
        raise ValueError(
            f"`{folder / _CONFIG}` must have a template, or a list of named ones, as chat_template. "
            f"Received: chat_template={template!r}"
        ) from None


def _read(path: pathlib.Path) -> dict[str, Any]:
    """Return the content of a JSON file, empty if there is none."""
    content = files.read_json(path) if path.is_file() else {}
    return content if isinstance(content, dict) else {}


def _text(token: Any) -> str | None:
    """Return the text of a token, which files describe by a text or an object."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None
