"""A tokenizer of bytes that runs inside the TensorFlow graph."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Self

import tensorflow as tf

from keras_transformer.text.tokenizers import hugging_face
from keras_transformer.text.tokenizers.vocabulary import (
    VocabularyTokenizer,
    deserialised,
    serialised,
    unused_ids,
    without_defaults,
)
from keras_transformer_options.arguments import check_not_negative

SPECIAL_TOKENS = {"pad": "<pad>", "unknown": "<unk>", "start": "<s>", "end": "</s>"}


class ByteTokenizer(VocabularyTokenizer):
    """Convert text to its UTF-8 bytes and back, eagerly and inside `tf.function`.

    Special tokens have the first ids, followed by the 256 bytes and `extra_tokens`. No training is needed, no text
    is out of vocabulary, and `detokenize(tokenize(text))` returns the text unchanged.

    Args:
        special_tokens: a mapping from roles to tokens, in the order of their ids.
        extra_tokens: tokens whose ids follow those of the bytes, such as ByT5's sentinels.
        special_tokens_in_text: whether to recognise special tokens in texts: "</s>" as one token, not four bytes.
        lstrip_tokens: special tokens that, where they are recognised, take the white space before them.
        rstrip_tokens: likewise, the white space after them.
        unused: the number of unused ids after the vocabulary, for models with more embeddings than the tokenizer has
            tokens.

    Attributes:
        empty_ids: the ids without content: the unknown id, unused ids, and the ids of ASCII white space.

    Raises:
        ValueError: if a token occurs twice, or there is no padding token.

    Example:
        >>> tokenizer = ByteTokenizer()
        >>> tokenizer.encode("né", add_end=True).numpy().tolist()
        [114, 199, 173, 3]
        >>> tokenizer.detokenize([114, 199, 173, 3]).numpy().decode()
        'né'

    References:
        Xue et al., "ByT5", https://arxiv.org/abs/2105.13626.
    """

    file_name = "bytes.json"

    def __init__(
        self,
        special_tokens: Mapping[str, str] = SPECIAL_TOKENS,
        extra_tokens: Sequence[str] = (),
        *,
        special_tokens_in_text: bool = False,
        lstrip_tokens: Sequence[str] = (),
        rstrip_tokens: Sequence[str] = (),
        unused: int = 0,
    ):
        check_not_negative(unused=unused)
        settings = {
            "special_tokens": dict(special_tokens),
            "extra_tokens": list(extra_tokens),
            "special_tokens_in_text": special_tokens_in_text,
            **without_defaults(
                lstrip_tokens=list(lstrip_tokens), rstrip_tokens=list(rstrip_tokens), unused=unused
            ),
        }
        first = list(dict.fromkeys(special_tokens.values()))
        bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
        super().__init__([*first, *bytes_, *extra_tokens], settings, needs_unknown=False)
        known = self._vocabulary
        self._special_ids = {**known.special_ids, **{token: known.ids[token] for token in extra_tokens}}
        self._offset = len(first)
        whitespace = {self._offset + byte for byte in b" \t\n\r\v\f"} | {self.unknown_id}
        after_pieces = range(len(known.pieces), self.vocabulary_size)
        self.empty_ids = tuple(sorted({*whitespace, *after_pieces} - {-1}))
        contents = [
            *map(str.encode, first),
            *(bytes([byte]) for byte in range(256)),
            *map(str.encode, extra_tokens),
            *[b""] * unused,
        ]
        with tf.init_scope(), tf.device("CPU"):
            self._contents = tf.constant(contents)

    @classmethod
    def from_files(
        cls,
        folder: str | os.PathLike[str],
        *,
        special_tokens_in_text: bool = False,
        vocabulary_size: int | None = None,
    ) -> Self:
        """Read the tokenizer of a ByT5 folder written by Hugging Face's libraries.

        Args:
            folder: the folder with `tokenizer_config.json`.
            special_tokens_in_text: whether to recognise special tokens in texts.
            vocabulary_size: the number of ids of the model, if it exceeds the number of ids of the tokenizer.

        Raises:
            FileNotFoundError: if there is no such file.
            ValueError: if the file is damaged or of a different type of tokenizer.

        Example:
            >>> ByteTokenizer.from_files("byt5-small").vocabulary_size  # doctest: +SKIP
            384
        """
        settings = hugging_face.read_bytes(folder)
        known = cls(special_tokens_in_text=special_tokens_in_text, **settings)
        unused = unused_ids(range(known.vocabulary_size), vocabulary_size)
        return known.with_arguments(unused=unused) if unused else known

    @property
    def special_token_ids(self) -> dict[str, int]:
        """The special tokens and their ids."""
        return dict(self._special_ids)

    @property
    def model_bytes(self) -> bytes:
        """The serialised settings."""
        return serialised({"settings": dict(self._settings)})

    @classmethod
    def _arguments(cls, model: bytes) -> dict[str, Any]:
        return deserialised(model, {"settings"})["settings"]

    def _tokenize_parts(self, texts: tf.Tensor, starts: tf.Tensor) -> tf.RaggedTensor:
        values = tf.io.decode_raw(tf.strings.reduce_join(texts), tf.uint8)
        lengths = tf.cast(tf.strings.length(texts), tf.int64)
        return tf.RaggedTensor.from_row_lengths(tf.cast(values, tf.int32) + self._offset, lengths)

    def _join(self, ids: tf.RaggedTensor) -> tf.Tensor:
        texts = tf.strings.reduce_join(ids.with_values(tf.gather(self._contents, ids.values)), axis=-1)
        return tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
