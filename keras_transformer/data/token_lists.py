"""Tokenised texts, and helpers for datasets of them."""

from collections.abc import Iterable, Iterator, Sequence

import tensorflow as tf

from keras_transformer.text import Tokenizer

_CHUNK = 8192


def tokenized(texts: Iterable[str], tokenizer: Tokenizer) -> Iterator[tf.RaggedTensor]:
    """Tokenise texts in chunks, and yield the ids of each chunk, int32 ragged (n, None).

    Raises:
        TypeError: if `texts` is a single string.
    """
    if isinstance(texts, str | bytes):
        raise TypeError(f"`texts` must be an iterable of strings. Received: texts={str(texts)[:50]!r}")
    texts = list(texts)
    for start in range(0, len(texts), _CHUNK):
        yield tokenizer.tokenize(tf.constant(texts[start : start + _CHUNK]))


def token_lists(texts: Iterable[str], tokenizer: Tokenizer) -> Iterator[list[int]]:
    """Tokenise texts, and yield the ids of each."""
    for ids in tokenized(texts, tokenizer):
        yield from ids.to_list()


def check_special_ids(argument: str, tokenizer: Tokenizer, names: Sequence[str]) -> None:
    """Raise a ValueError if a tokenizer lacks any of the named ids.

    Args:
        argument: the argument's name, for error messages.
        tokenizer: the tokenizer.
        names: names of attributes such as "pad_id".
    """
    found = {name: getattr(tokenizer, name, None) for name in names}
    if any(id_ is None or id_ < 0 for id_ in found.values()):
        received = ", ".join(f"{name}={id_}" for name, id_ in found.items())
        raise ValueError(f"`{argument}` must have {' and '.join(names)}. Received: {received}")


def padding_values(tokenizer: Tokenizer) -> tuple[int, int]:
    """Return the padding values of ids and of labels: `pad_id` for both, or `end_id` and −1 if that is None."""
    return (tokenizer.end_id, -1) if tokenizer.pad_id is None else (tokenizer.pad_id, tokenizer.pad_id)
