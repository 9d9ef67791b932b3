"""Generation by a decoder-only model: prompts and conversations."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from keras_transformer_serving.generation import GenerationEngine
from keras_transformer_serving.jobs import Steps, compute, gather
from keras_transformer_serving.pipelines.errors import InvalidInputError
from keras_transformer_serving.pipelines.generating import Generating, GeneratingTask
from keras_transformer_serving.tasks import Row
from keras_transformer_serving.text import Tokenizer
from keras_transformer_serving.text.chat import Chat, ChatTemplate, is_conversation
from keras_transformer_serving.text.marked_text import MarkedText
from keras_transformer_serving.text.methods import DETOKENIZE
from keras_transformer_serving.text.splitting import Split


class TextGenerationTask(Chat, GeneratingTask):
    """Generation by a decoder-only model: prompts are continued.

    With a chat template, a prompt may be a conversation: a list of messages, or a mapping with "messages" and other
    arguments of `apply_chat_template`.

    Attributes:
        add_start: whether prompts begin with the start token.
        special_tokens: whether special tokens in prompts are recognised.
        anchor_id: an ordinary token.
    """

    add_start: bool
    special_tokens: bool
    anchor_id: int

    def _is_one(self, texts: Any) -> bool:
        return isinstance(texts, str) or is_conversation(texts)

    def _check_text(self, text: Any, index: int) -> None:
        if not is_conversation(text):
            super()._check_text(text, index)

    def check_options(self, options: Mapping[str, Any], truncate: bool) -> None:
        """Raise a ValueError if there is no such option."""
        others = ("prefixes", "long_texts", "tag_handling", "placeholders", "glossary")
        for name in others:
            if name in options:
                raise ValueError(
                    f"`{name}` must be None for a decoder-only model. Received: {name}={options[name]!r}"
                )

    def _split(self, text: Any, row: Row, index: int) -> Steps[Split | MarkedText]:
        yield from ()
        return Split.whole(text)

    def _tokenized(self, text: Any, row: Row) -> Steps[list[int]]:
        if is_conversation(text):  # its special tokens are in the template
            return (yield from self._tokenize(self._text_of(text), True))
        ids = yield from self._tokenize(text, self.special_tokens)
        ids = [self.tokenizer.start_id, *ids] if self.add_start else ids
        if not ids:
            raise InvalidInputError("texts", "`texts` must each have a token. Received: none")
        return ids

    def _truncated(self, ids: list[int], limit: int) -> list[int]:
        start = int(self.add_start)
        return [*ids[:start], *ids[len(ids) - limit + start :]]

    def _decoded(self, ids: Sequence[int]) -> Steps[str]:
        """Return the text of generated ids, including the space after the prompt."""
        # Without an ordinary token before them, the leading space would be stripped.
        text: str = yield from compute(DETOKENIZE, [self.anchor_id, *self._shown_ids(ids)])
        return text.removeprefix(self._anchor)

    @functools.cached_property
    def _anchor(self) -> str:
        """The text of the ordinary token."""
        assert self.text_methods is not None
        (text,) = self.text_methods.methods[DETOKENIZE]([[self.anchor_id]])
        return str(text)

    def _target_ids(self, text: Any, target: str) -> Steps[list[int]]:
        """Return the ids of a target after its text, with the end token.

        If a token spans the boundary of both, they are those after an ordinary token.
        """
        strings = (text, text + target, self._anchor + target, target)
        prompt, joint, anchored, separate = yield from gather(
            self._tokenize(string, self.special_tokens) for string in strings
        )
        if joint[: len(prompt)] == prompt:
            ids = joint[len(prompt) :]
        elif anchored[:1] == [self.anchor_id]:
            ids = anchored[1:]
        elif (yield from self._decoded(separate)) == target:
            ids = separate
        else:
            raise InvalidInputError(
                "targets",
                "`targets` must begin at the start of a token of the concatenated text. "
                "Received: a target that begins within a token",
            )
        return [*ids, self.engine.end_id]


class TextGeneration(TextGenerationTask, Generating):
    """An exported decoder-only model, from prompts to their continuations; `load` creates it."""

    def __init__(self, engine: GenerationEngine, config: dict[str, Any], tokenizer: Tokenizer | None) -> None:
        super().__init__(engine, config, tokenizer)
        self.add_start, self.special_tokens = config["add_start"], config["special_tokens"]
        self.anchor_id = config["anchor_id"]
        self.chat_template = ChatTemplate.of(config.get("chat_template"), {})
