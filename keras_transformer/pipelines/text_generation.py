"""Text generation with a decoder-only model."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, ClassVar

from keras_transformer.lazy_tensorflow import tf
from keras_transformer.models import GPT, Gemma, Llama
from keras_transformer.pipelines.generating import GeneratingPipeline
from keras_transformer.pipelines.hugging_face_chat import read_chat_template, special_tokens_of
from keras_transformer.pipelines.pipeline import Preprocessed
from keras_transformer.pipelines.ragged_rows import first_error, first_ids, utf8_error
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import ArgumentError, check
from keras_transformer_serving.pipelines.text_generation import TextGenerationTask
from keras_transformer_serving.text.chat import ChatTemplate
from keras_transformer_serving.text.methods import DETOKENIZE, TOKENIZE, TextMethods

_PROMPT = 512
_ANCHORS = 1024  # tokens that are tried at once


class TextGeneration(TextGenerationTask, GeneratingPipeline):
    """A pipeline of a language model, its tokenizer and generation settings, from prompts to their continuations.

    The text is the concatenation of prompt and output: a space between them belongs to the output.

    With a chat template, a prompt may be a conversation: a list of messages, or a mapping with "messages" and other
    arguments of `apply_chat_template`, such as "tools". Its output is the model's next message or, if the last message
    is the model's ("assistant"), the rest of it.

    Args:
        model: a decoder-only model such as `models.GPT`, or an `Ensemble` of some, which cannot be saved.
        tokenizer: with the model's vocabulary, such as `text.BytePairTokenizer`.
        generation: a sampler or its name.
        constraints: constraints on the outputs, such as `generation.NoRepeatNGram(3)`.
        max_new_tokens: the maximum number of tokens of an output.
        skip_special_tokens: whether outputs are without special tokens such as "<unk>", as in `transformers`.
        max_source_tokens: the maximum number of tokens of a prompt; longer prompts raise an error. By default the
            model's positions minus `max_new_tokens`, or 512 if they are unlimited.
        add_start: whether to begin every prompt with the tokenizer's start id, which in GPT-2 equals the end id.
            Required for empty prompts.
        special_tokens: whether to recognise special tokens in prompts, such as "<|endoftext|>" between documents, as
            one token. They always are in conversations, which do not get a start token besides.
        chat_template: the template of conversations in Jinja, or a `ChatTemplate`; None for none. For
            `from_hugging_face` also the name of a template of the folder, such as "rag".

    Example:
        >>> writer = TextGeneration(model, tokenizer, generation.Sample(top_p=0.9), max_new_tokens=5)
        >>> writer(["To be, or not"])
        [' to be: that']
        >>> chat([{"role": "user", "content": "To be, or not?"}])  # doctest: +SKIP
        'To be.'
    """

    summary: ClassVar[str] = "It continues a text."
    hub_task: ClassVar[str | None] = "text-generation"
    model_classes: ClassVar[tuple[type, ...]] = (GPT, Llama, Gemma)
    _model_description: ClassVar[str] = "a decoder-only model such as `models.GPT`"
    _has_encoder: ClassVar[bool] = False
    _shared: ClassVar[tuple[str, ...]] = ("vocabulary_size", "pad_id", "end_id")

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        generation: Any = "greedy",
        *,
        constraints: Sequence[Any] = (),
        max_new_tokens: int = 64,
        max_source_tokens: int | None = None,
        add_start: bool = False,
        special_tokens: bool = False,
        chat_template: Any = None,
        skip_special_tokens: bool = False,
    ) -> None:
        super().__init__(
            model,
            tokenizer,
            generation,
            constraints=constraints,
            max_new_tokens=max_new_tokens,
            max_source_tokens=_PROMPT if max_source_tokens is None else max_source_tokens,
            skip_special_tokens=skip_special_tokens,
        )
        limit = getattr(model, "max_length", None)
        if limit is not None:
            is_valid = max_new_tokens <= limit
            check(is_valid, f"be at most {limit}, the model's positions", max_new_tokens=max_new_tokens)
            max_prompt = limit - self.max_new_tokens + 1
            if max_source_tokens is None:
                self.max_source_tokens = max_prompt
            elif max_source_tokens > max_prompt:
                raise ArgumentError(
                    f"{{max_source_tokens}} and {{max_new_tokens}} must fit the model's {limit} positions together. "
                    f"Received: {max_source_tokens} and {max_new_tokens}"
                )
        if add_start and (tokenizer.start_id < 0 or tokenizer.start_id == model.pad_id):
            raise ValueError(
                "`add_start` must be False for a tokenizer without a start id, or whose start id is the padding id. "
                f"Received: tokenizer.start_id={tokenizer.start_id}"
            )
        self.add_start = add_start
        self.special_tokens = special_tokens
        self._source_tokens_argument = max_source_tokens
        self.anchor_id, self._anchor_text = _anchor(tokenizer, model, self.text_methods)
        self.chat_template = ChatTemplate.of(chat_template, special_tokens_of(tokenizer))

    def preprocess(self, texts: Tensor, truncate: bool = False) -> Preprocessed:
        """Convert prompts to the inputs of the model, as TensorFlow operations.

        Args:
            texts: a string tensor (B,).
            truncate: whether to truncate long prompts to the start token, if any, and their last tokens.

        Returns:
            The inputs "source_ids", int32 (B, S), the ids of the prompts, padded on the right, and "padding_mask",
            booleans (B, S), False for padding. Prompts that are empty or too long have an error.
        """
        rows = self.tokenizer.encode_ragged(
            texts, add_start=self.add_start, special_tokens=self.special_tokens
        )
        if truncate:
            rows = self._truncated_rows(rows, int(self.add_start))
        missing = tf.where(rows.row_lengths() > 0, "", "`texts` must each have a token. Received: none")
        return self._padded_inputs(rows, first_error(utf8_error(texts=texts), missing))

    def decode(self, ids: Any) -> Tensor:
        """Decode generated ids (B, M) to texts, strings (B,), including the space after the prompt."""
        # Without an anchor token before them, tokenizers such as SentencePiece would strip the leading space.
        ids = self._ids_to_decode(ids)
        anchor = tf.fill([tf.shape(ids)[0], 1], tf.cast(self.anchor_id, ids.dtype))
        return tf.strings.substr(
            self.tokenizer.detokenize(tf.concat([anchor, ids], axis=1)), len(self._anchor_text), -1
        )

    def _target_rows(self, texts: Tensor, targets: Tensor) -> tuple[tf.RaggedTensor, Tensor]:
        """Return the ids (B, None) of the targets after their texts, with end tokens, and errors (B,)."""
        anchor_id, anchor = self.anchor_id, self._anchor_text
        prompts, joint, anchored, separate = (
            self.tokenizer.tokenize(strings, special_tokens=self.special_tokens)
            for strings in (
                texts,
                tf.strings.join([texts, targets]),
                tf.strings.join([anchor, targets]),
                targets,
            )
        )
        # If a token spans the boundary of text and target, use the target's ids after the anchor.
        counts = prompts.row_lengths()
        after_prompt = _as_string(first_ids(joint, counts)) == _as_string(prompts)
        after_anchor = _as_string(anchored[:, :1]) == str(anchor_id)
        ids = (
            (_skip(joint, counts), after_prompt),
            (anchored[:, 1:], ~after_prompt & after_anchor),
            (separate, ~after_prompt & ~after_anchor),
        )
        end = tf.fill([counts.shape[0] or tf.size(counts), 1], self.model.end_id)
        rows = tf.concat([*(_empty_unless(rows, chosen) for rows, chosen in ids), end], axis=1)
        same = self.decode(self._padded(separate)[0]) == targets
        error = (
            "`targets` must begin at the start of a token of the concatenated text. "
            "Received: a target that begins within a token"
        )
        return rows, tf.where(after_prompt | after_anchor | same, "", error)

    @classmethod
    def hugging_face_arguments(cls, folder: Any, config: Any, model: Any, settings: Any) -> dict[str, Any]:
        """Return the generation settings, whether prompts begin with the start token, and the chat template."""
        arguments = super().hugging_face_arguments(folder, config, model, settings)
        if "tokenizer" not in settings:
            from keras_transformer.text.tokenizers.hugging_face import template

            around = template(folder)
            arguments["add_start"] = around.start is not None
            if around.end is not None:
                warnings.warn(
                    f"`{folder}` puts {around.end!r} after texts. This is not applied to prompts, which go on",
                    stacklevel=4,
                )
        if "chat_template" not in settings:
            arguments["chat_template"] = read_chat_template(folder)
        return arguments

    @property
    def hugging_face_rows(self) -> dict[str, bool]:
        """The special tokens around prompts."""
        return {"add_start": self.add_start, "add_end": False}

    @classmethod
    def hugging_face_settings(cls, folder: Any, settings: Any) -> Any:
        """Return the arguments of the caller, with a chat template of the folder in place of its name."""
        name = settings.get("chat_template")
        if not isinstance(name, str) or "{" in name:
            return settings
        return {**settings, "chat_template": read_chat_template(folder, name)}

    @classmethod
    def keras_hub_arguments(cls, model: Any, tokenizer: Any, converted: Any) -> dict[str, Any]:
        """Return whether prompts begin with the start token, as in KerasHub's preprocessor."""
        return {"add_start": getattr(getattr(model, "preprocessor", None), "add_start_token", False)}

    def other_settings(self) -> dict[str, Any]:
        """Return the settings without the sampler."""
        return {
            **super().other_settings(),
            "max_source_tokens": self._source_tokens_argument,
            "add_start": self.add_start,
            "special_tokens": self.special_tokens,
            "chat_template": None if self.chat_template is None else self.chat_template.get_config(),
        }

    def generation_config(self) -> dict[str, Any]:
        """Return the generation settings of an export, with defaults resolved."""
        config = {**self.settings(), "max_source_tokens": self.max_source_tokens}
        del config["chat_template"]
        return config

    def export_config(self) -> dict[str, Any]:
        """Return the settings that serving needs to run an export without this package."""
        config = {**super().export_config(), "anchor_id": self.anchor_id}
        return {name: value for name, value in config.items() if name != "chat_template" or value is not None}


def _anchor(tokenizer: Any, model: Any, text_methods: TextMethods) -> tuple[int, str]:
    """Return an ordinary token and its text, preferably one of ASCII, whose text is encoded as this token."""
    excluded = {model.pad_id, model.end_id, tokenizer.start_id, *tokenizer.empty_ids}
    ids = sorted(set(range(tokenizer.vocabulary_size)) - excluded)
    tokenize, detokenize = text_methods.methods[TOKENIZE], text_methods.methods[DETOKENIZE]
    found: dict[tuple[bool, bool], tuple[int, str]] = {}
    for begin in range(0, len(ids), _ANCHORS):
        chosen = ids[begin : begin + _ANCHORS]
        texts = zip(chosen, detokenize([[id_] for id_ in chosen]), strict=True)
        words = [(id_, text) for id_, text in texts if text.isalnum()]
        rows = tokenize([(word, False) for _, word in words])
        for (id_, word), row in zip(words, rows, strict=True):
            found.setdefault((row == [id_], word.isascii()), (id_, word))
        if (True, True) in found:
            break
    if not found:
        raise ValueError("`tokenizer` must have a token of letters or digits. Received: none")
    return found[max(found)]


def _skip(rows: tf.RaggedTensor, counts: Tensor) -> tf.RaggedTensor:
    """Return all but the first `counts` (B,) ids of each row."""
    return tf.ragged.boolean_mask(rows, tf.ragged.range(rows.row_lengths()) >= counts[:, None])


def _empty_unless(rows: tf.RaggedTensor, chosen: Tensor) -> tf.RaggedTensor:
    """Empty the rows that are not chosen (B,)."""
    return first_ids(rows, tf.where(chosen, rows.row_lengths(), 0))


def _as_string(rows: tf.RaggedTensor) -> Tensor:
    """Return each row of ids as one string, for comparison."""
    return tf.strings.reduce_join(tf.strings.as_string(rows), axis=1, separator=" ")
