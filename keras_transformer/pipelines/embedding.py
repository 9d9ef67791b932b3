"""Sentence embeddings."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.models import BERT
from keras_transformer.models.sentence_encoder import SentenceEncoder, check_pooling, pool, pooled_dim
from keras_transformer.pipelines.arguments import as_list
from keras_transformer.pipelines.base import BATCH, DEFAULT, Arrays, Axes, Graph, Preprocessed
from keras_transformer.pipelines.texts import TextPipeline, first_error, utf8_error
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check_one_of
from keras_transformer_serving.pipelines.embedding import prompt_options
from keras_transformer_serving.pipelines.errors import Errors

_EMBED = "embed"


class Embedding(TextPipeline):
    """A pipeline of an encoder and its tokenizer, from texts to vectors.

    Args:
        model: such as `models.BERT`, or a `models.SentenceEncoder`.
        tokenizer: with the model's vocabulary.
        pooling: the name of a pooling of `models.SentenceEncoder`, or several, whose vectors are concatenated. By
            default that of a `SentenceEncoder`, otherwise "mean".
        normalize: whether to normalise vectors to length 1, so that dot products are cosine similarities.
        long_texts: "refuse" texts that are too long, "truncate" them, or average the vectors of windows, weighted by
            their numbers of tokens ("window").
        max_length: the maximum number of tokens, including special ones; by default the model's.
        prompts: texts that are put before the texts to embed, by name, such as {"query": "query: "}.
        default_prompt_name: the name of the prompt of calls without one; None for no prompt.

    Raises:
        TypeError: if `prompts` does not map names to texts.
        ValueError: if model and tokenizer do not match, an argument has an unknown value, or `pooling` is not that of
            a `SentenceEncoder`.

    Example:
        >>> vectors = Embedding(model, tokenizer)(["a dog barks", "a hound bays"])
        >>> vectors[0] @ vectors[1]
    """

    model_classes: ClassVar[tuple[type, ...]] = (BERT,)
    long_text_options = ("refuse", "window", "truncate")

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        pooling: str | Sequence[str] | None = None,
        normalize: bool = True,
        long_texts: str = "refuse",
        *,
        max_length: int | None = None,
        prompts: Mapping[str, str] | None = None,
        default_prompt_name: str | None = None,
    ) -> None:
        super().__init__(model, tokenizer, long_texts, max_length)
        if not isinstance(model, SentenceEncoder):
            self.pooling = check_pooling("mean" if pooling is None else pooling)
        else:
            self.pooling = model.pooling
            if pooling is not None:
                given = pooling if isinstance(pooling, str) else tuple(pooling)
                check_one_of((self.pooling,), pooling=given)
        self.normalize = normalize
        self.prompts = _checked_prompts(prompts, default_prompt_name)
        self.default_prompt_name = default_prompt_name

    @property
    def embedding_dim(self) -> int:
        """The size of the vectors."""
        if isinstance(self.model, SentenceEncoder):
            return self.model.embedding_dim
        return pooled_dim(self.encoder, self.pooling)

    def __call__(
        self,
        text: str | Iterable[str],
        batch_size: int = 32,
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        errors: Errors = "raise",
        truncate: bool = False,
    ) -> Any:
        """Embed texts.

        Args:
            text: a list of texts, or one string.
            batch_size: the number of rows in a batch.
            prompt_name: the name of a prompt in `prompts` that is put before each text; by default
                `default_prompt_name`.
            prompt: a prompt without a name; "" for none.
            errors: "raise" the error of a text, or "return" it in place of the answer.
            truncate: whether to cut a text that is too long, keeping its first tokens.

        Returns:
            float32 (n, E), or (E,) for one string; with errors="return" a list of vectors and errors.

        Raises:
            TypeError: if a text or `prompt` is not a string.
            ValueError: if a text is too long, `prompt_name` is unknown, or both a name and a prompt are given.
        """
        one = isinstance(text, str)
        texts = [text] if one else as_list("text", text)
        options = prompt_options(self.prompts, prompt_name, prompt)
        columns = {name: [value] * len(texts) for name, value in options.items()}
        rows = self._answers(
            batch_size,
            lambda row, *_: row["embedding"],
            errors=errors,
            truncate=truncate,
            text=texts,
            **columns,
        )
        if errors == "return":
            return rows[0] if one else rows
        return np.array(rows, "float32").reshape([-1, self.embedding_dim][one:])

    def preprocess(
        self,
        text: Tensor,
        prompt_name: Tensor | None = None,
        prompt: Tensor | None = None,
        *,
        truncate: bool = False,
    ) -> Preprocessed:
        """Convert strings (B,) to the model's inputs, as TensorFlow operations.

        Args:
            text: the texts (B,).
            prompt_name: the names (B,) or (1,) of their prompts, "" for none; by default `default_prompt_name`.
            prompt: prompts (B,) or (1,) that replace those of `prompt_name` unless "".
            truncate: whether to cut texts that are too long.
        """
        default = tf.constant([self.default_prompt_name or ""])
        names = default if prompt_name is None else prompt_name
        given = tf.constant([""]) if prompt is None else prompt
        known = tf.constant(["", *self.prompts])
        is_known = names[:, None] == known  # (B, 1 + P)
        of_name = tf.gather(["", *self.prompts.values()], tf.argmax(tf.cast(is_known, tf.int32), axis=1))
        unknown = tf.strings.join([f"`prompt_name` must be one of {list(self.prompts)}. Received: ", names])
        error = first_error(
            utf8_error(text=text),
            tf.where(tf.reduce_any(is_known, axis=1), "", unknown),
            utf8_error(prompt=given),
        )
        prompted = tf.where(given == "", of_name, given) + text
        windows = self._windows(self.tokenizer.tokenize(prompted), "text", error, truncate)
        state = {"owner": windows.owner, "length": windows.ids.row_lengths() + 2}
        return Preprocessed(self._inputs(windows.ids), windows.error, state)

    def forward(self, inputs: Any) -> dict[str, Tensor]:
        """Return the hidden states (R, L, D), and the embeddings (R, E), plain and normalised if asked."""
        hidden = self.encoder(inputs, training=False)
        if isinstance(self.model, SentenceEncoder):
            pooled = self.model.embed(hidden, inputs)
        else:
            pooled = pool(self.encoder, hidden, inputs, self.pooling)
        embedding = keras.ops.normalize(pooled) if self.normalize else pooled
        return {"last_hidden_state": hidden, "pooled": pooled, "sentence_embedding": embedding}

    def postprocess(self, outputs: dict[str, Tensor], batch: Preprocessed) -> dict[str, Tensor]:
        """Average the vectors of each text's windows: "embedding" (B, E)."""
        weights = tf.cast(batch.state["length"], tf.float32)[:, None]
        total, tokens = (
            tf.math.unsorted_segment_sum(values, batch.state["owner"], tf.size(batch.error))
            for values in (weights * outputs["pooled"], weights)
        )
        mean = total / tokens
        return {"embedding": tf.math.l2_normalize(mean, axis=-1) if self.normalize else mean}

    def signatures(self) -> dict[str, Graph]:
        """Return the signatures of a SavedModel; with prompts also "embed", which takes them as options."""
        found = super().signatures()
        if not self.prompts:
            return found
        options = {"prompt_name": self.default_prompt_name or "", "prompt": ""}
        defaults = {name: np.array([value], object) for name, value in options.items()}
        specs = [tf.TensorSpec([None], tf.string, name=name) for name in ("text", *defaults)]
        return {**found, _EMBED: Graph(self.serve, specs, defaults=defaults)}

    def example_inputs(self, texts: Sequence[Any] | None = None) -> dict[str, list[Arrays]]:
        """Return inputs on which an export and the pipeline are compared; see `ForwardPipeline`."""
        found = super().example_inputs(texts)
        if not self.prompts:
            return found
        names, prompts = ["", *self.prompts, ""], ["", *[""] * len(self.prompts), "a "]
        return {
            **found,
            _EMBED: [
                {
                    "text": rows,
                    "prompt_name": np.resize(names, len(rows)),
                    "prompt": np.resize(prompts, len(rows)),
                }
                for rows in (each["text"] for each in found[DEFAULT])
            ],
        }

    @property
    def graph_outputs(self) -> Axes:
        """The outputs of the model's graph and the names of their first axes."""
        vectors = ("pooled", "sentence_embedding")
        return {"last_hidden_state": [BATCH, "sequence_length"], **{name: [BATCH] for name in vectors}}

    def settings(self) -> dict[str, Any]:
        """Return the constructor's arguments except model and tokenizer."""
        return {
            **super().settings(),
            "pooling": self.pooling,
            "normalize": self.normalize,
            "max_length": self.max_length,
            "prompts": self.prompts,
            "default_prompt_name": self.default_prompt_name,
        }

    def export_config(self) -> dict[str, Any]:
        """Return the settings that serving needs to run an export without this package."""
        return {**super().export_config(), "model_dim": self.embedding_dim}


def _checked_prompts(prompts: Any, default_prompt_name: Any) -> dict[str, str]:
    """Return the prompts, by name.

    Raises:
        TypeError: if they do not map names to texts.
        ValueError: if a name is empty, or the default one is not among them.
    """
    prompts = {} if prompts is None else prompts
    if not isinstance(prompts, Mapping) or not all(
        isinstance(each, str) for item in prompts.items() for each in item
    ):
        raise TypeError(f"`prompts` must be a dictionary from names to texts. Received: prompts={prompts!r}")
    if "" in prompts:
        raise ValueError(f"`prompts` must have names that are not empty. Received: prompts={dict(prompts)!r}")
    if default_prompt_name is not None:
        check_one_of(list(prompts), default_prompt_name=default_prompt_name)
    return dict(prompts)
