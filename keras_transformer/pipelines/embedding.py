"""Sentence embeddings."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import keras
import numpy as np

from keras_transformer.interop import sentence_transformers
from keras_transformer.lazy_tensorflow import tf
from keras_transformer.models import BERT, ModernBERT
from keras_transformer.models.sentence_encoder import SentenceEncoder, check_pooling, pool, pooled_dim
from keras_transformer.pipelines.pipeline import DEFAULT, Arrays, Preprocessed
from keras_transformer.pipelines.ragged_rows import first_error, utf8_error
from keras_transformer.pipelines.texts import TextPipeline
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check, check_one_of, is_integer
from keras_transformer_serving.pipelines.embedding import EMBED, EmbeddingTask
from keras_transformer_serving.pipelines.texts import RIGHT


class Embedding(EmbeddingTask, TextPipeline):
    """A pipeline of an encoder and its tokenizer, from texts to vectors.

    Args:
        model: such as `models.BERT`, or a `models.SentenceEncoder`.
        tokenizer: with the model's vocabulary.
        pooling: the name of a pooling of `models.SentenceEncoder`, or several, whose vectors are concatenated. By
            default that of a `SentenceEncoder`, otherwise "mean".
        normalize: whether to normalise vectors to length 1, so that dot products are cosine similarities.
        long_texts: "refuse" to raise an error for texts that are too long, "truncate" to truncate them, or "window" to
            average the vectors of windows, weighted by their numbers of tokens.
        max_length: the maximum number of tokens, including special ones; by default the model's.
        truncation_side: what truncate=True keeps of a text that is too long: "right" its first tokens, "left" its last.
        truncate_dim: the number of first values of vectors to keep before they are normalised, for models that were
            trained so (Matryoshka); by default all.
        prompts: texts that are prepended to the texts to embed, by name, such as {"query": "query: "}.
        default_prompt_name: the name of the default prompt; None for no prompt.

    Raises:
        ValueError: if model and tokenizer do not match, an argument has an unknown value, or `pooling` differs from the
            pooling of a `SentenceEncoder`.

    Example:
        >>> vectors = Embedding(model, tokenizer)(["a dog barks", "a hound bays"])
        >>> vectors[0] @ vectors[1]
    """

    summary: ClassVar[str] = "It turns a text into a vector: texts of similar meaning have similar vectors."
    sequence_outputs: ClassVar[tuple[str, ...]] = ("last_hidden_state",)
    hub_task: ClassVar[str | None] = "feature-extraction"
    model_classes: ClassVar[tuple[type, ...]] = (BERT, ModernBERT)
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
        truncation_side: str = RIGHT,
        truncate_dim: int | None = None,
        prompts: Mapping[str, str] | None = None,
        default_prompt_name: str | None = None,
    ) -> None:
        super().__init__(model, tokenizer, long_texts, max_length, truncation_side)
        if not isinstance(model, SentenceEncoder):
            self.pooling = check_pooling("mean" if pooling is None else pooling)
        else:
            self.pooling = model.pooling
            if pooling is not None:
                pooling = pooling if isinstance(pooling, str) else tuple(pooling)
                check_one_of((self.pooling,), pooling=pooling)
        size = self._pooled_dim
        is_valid = truncate_dim is None or (is_integer(truncate_dim) and 1 <= truncate_dim <= size)
        check(is_valid, f"be an integer in [1, {size}], the size of vectors", truncate_dim=truncate_dim)
        self.truncate_dim = truncate_dim
        self.normalize = normalize
        self.prompts = _checked_prompts(prompts, default_prompt_name)
        self.default_prompt_name = default_prompt_name

    @property
    def hugging_face_model(self) -> Any:
        """The encoder, around which `sentence-transformers` has modules."""
        return self.encoder

    def write_hugging_face(self, folder: pathlib.Path) -> None:
        """Write the modules of `sentence-transformers`."""
        sentence_transformers.write_modules(
            folder,
            self.encoder,
            self.pooling,
            getattr(self.model, "head", ()),
            normalize=self.normalize,
            max_length=self.max_length,
            truncate_dim=self.truncate_dim,
            prompts=self.prompts,
            default_prompt_name=self.default_prompt_name,
        )

    @property
    def embedding_dim(self) -> int:
        """The size of the vectors."""
        return self.truncate_dim or self._pooled_dim

    @property
    def _pooled_dim(self) -> int:
        if isinstance(self.model, SentenceEncoder):
            return self.model.embedding_dim
        return pooled_dim(self.encoder, self.pooling)

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
            prompt: prompts (B,) or (1,) that replace the named ones unless "".
            truncate: whether to truncate texts that are too long.
        """
        default = tf.constant([self.default_prompt_name or ""])
        names = default if prompt_name is None else prompt_name
        custom = tf.constant([""]) if prompt is None else prompt
        known = tf.constant(["", *self.prompts])
        is_known = names[:, None] == known  # (B, 1 + P)
        named = tf.gather(["", *self.prompts.values()], tf.argmax(tf.cast(is_known, tf.int32), axis=1))
        unknown = tf.strings.join([f"`prompt_name` must be one of {list(self.prompts)}. Received: ", names])
        error = first_error(
            utf8_error(text=text),
            tf.where(tf.reduce_any(is_known, axis=1), "", unknown),
            utf8_error(prompt=custom),
        )
        prompted = tf.where(custom == "", named, custom) + text
        windows = self._windows(self.tokenizer.tokenize(prompted), "text", error, truncate)
        state = {"owner": windows.owner, "length": windows.ids.row_lengths() + 2}
        return Preprocessed(self._inputs(windows.ids), windows.error, state)

    def forward(self, inputs: Any) -> dict[str, Tensor]:
        """Return the hidden states (R, L, D) and the pooled vectors (R, E), before and after normalisation."""
        hidden = self.encoder(inputs, training=False)
        if isinstance(self.model, SentenceEncoder):
            pooled = self.model.embed(hidden, inputs)
        else:
            pooled = pool(self.encoder, hidden, inputs, self.pooling)
        if self.truncate_dim is not None:
            pooled = pooled[:, : self.truncate_dim]
        embedding = _normalized(pooled) if self.normalize else pooled
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

    def example_inputs(self, texts: Sequence[Any] | None = None) -> dict[str, list[Arrays]]:
        """Return inputs of an export's signatures, including prompts; see `Pipeline`."""
        inputs = super().example_inputs(texts)
        if not self.prompts:
            return inputs
        names, prompts = ["", *self.prompts, ""], ["", *[""] * len(self.prompts), "a "]
        return {
            **inputs,
            EMBED: [
                {
                    "text": rows,
                    "prompt_name": np.resize(names, len(rows)),
                    "prompt": np.resize(prompts, len(rows)),
                }
                for rows in (batch["text"] for batch in inputs[DEFAULT])
            ],
        }

    def export_config(self) -> dict[str, Any]:
        """Return the settings that serving needs to run an export without this package."""
        return {**super().export_config(), "model_dim": self.embedding_dim}


def _checked_prompts(prompts: Any, default_prompt_name: Any) -> dict[str, str]:
    """Validate the prompts, and return them by name."""
    prompts = {} if prompts is None else prompts
    if not isinstance(prompts, Mapping) or not all(
        isinstance(text, str) for item in prompts.items() for text in item
    ):
        raise TypeError(f"`prompts` must be a dictionary from names to texts. Received: prompts={prompts!r}")
    if "" in prompts:
        raise ValueError(f"`prompts` must have non-empty names. Received: prompts={dict(prompts)!r}")
    if default_prompt_name is not None:
        check_one_of(list(prompts), default_prompt_name=default_prompt_name)
    return dict(prompts)


def _normalized(vectors: Tensor) -> Tensor:
    """Divide vectors by their norms; one of zeros stays as it is, also where 1/√0 is not ∞, as in LiteRT."""
    norms = keras.ops.sqrt(keras.ops.sum(keras.ops.square(vectors), axis=-1, keepdims=True))
    return vectors / keras.ops.where(norms == 0, keras.ops.ones_like(norms), norms)
