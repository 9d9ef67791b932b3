"""Batches of texts to train a decoder-only model to predict the next token."""

import itertools
import os
from collections.abc import Iterator

import numpy as np

from keras_transformer.data.batches import Dataset, batches
from keras_transformer.data.epochs import Batch, ContiguousOrder, Order, RowOrder, Shard
from keras_transformer.data.examples import stored
from keras_transformer.data.packing import Elements, PackedTexts
from keras_transformer.data.sampling import SampledRows, check_sampling, nondeterministic_tokenizer
from keras_transformer.data.storage import Arrays, Chunk, RowsToStore, gathered
from keras_transformer.data.tokenized_texts import (
    Texts,
    Tokenizer,
    check_special_ids,
    check_tokens,
    padding_values,
    text_examples,
    tokenized,
)
from keras_transformer_options.arguments import check, check_positive_integer
from keras_transformer_options.columns import Columns


def language_modeling(
    texts: Texts,
    tokenizer: Tokenizer,
    batch_size: int = 32,
    *,
    columns: Columns = None,
    on_error: str = "raise",
    length: int = 256,
    separate: bool = False,
    contiguous: bool = False,
    sampling: float = 0.0,
    shuffle: bool = True,
    seed: int = 0,
    shard: tuple[int, int] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> Dataset:
    r"""Make batches for the objective $\max_\theta \sum_t \log p_\theta(w_t \mid w_{t-T} \dots w_{t-1})$.

    The texts, each followed by an end token, are concatenated to one stream of tokens $w_t$ and split into rows of T
    tokens without padding; a row may contain parts of several texts. If shuffled, row boundaries differ in each epoch.
    With `separate`, rows are densely packed with whole texts that do not attend to each other; texts of more than T
    tokens are split. Each token except the first (of the stream, or of each text) is predicted exactly once per epoch.
    All texts are tokenised once, when the dataset is made; their ids stay in memory, or in files of `cache_dir`.

    Args:
        texts: strings, and `pathlib.Path`s or patterns of files that `read_examples` reads, such as the lines of a text
            file; or one such path. Empty strings are skipped.
        tokenizer: a tokenizer with an end id. Inputs and labels are padded with its `pad_id`; if that is None, inputs
            are padded with `end_id` and labels with −1.
        batch_size: B, the number of rows in every batch; the last batch is completed with rows of padding, whose labels
            losses and metrics must ignore.
        columns: the column of the texts in files, an index or a name; by default files must have only one.
        on_error: "raise" to raise an error for malformed lines of files, "skip" to skip them with a warning.
        length: T, the length of a row.
        separate: whether each token attends only to tokens of its own text.
        contiguous: whether row b of each batch continues row b of the batch before, for a stateful model such as
            `models.TransformerXL`; the stream is split into B parts, and only the boundaries of rows are shuffled.
        sampling: with `separate`, the rate of random segmentations, another one of each text in each epoch, see
            `translation_pairs`. Rows have spare positions for longer samples; a text whose sample is still too long, or
            that has more than T tokens, keeps the usual segmentation.
        shuffle: whether the order and the boundaries of rows differ in each epoch.
        seed: the seed of shuffling.
        shard: (index, count), to read one shard of each batch as one of several workers, see `translation_pairs`.
        cache_dir: a folder for the ids, see `translation_pairs`.

    Returns:
        A dataset of known cardinality with elements `({"token_ids": (B, T)}, labels (B, T))`, int32; with `separate`,
        inputs also have "segment_ids" (1, 2, … for the texts of a row, 0 for padding) and "positions", which start
        at 0 in each text.

    Raises:
        ValueError: if there is no token to predict, the tokenizer has no end id, or `sampling` is not 0 although the
            tokenizer cannot sample or `separate` is False.

    Example:
        >>> from keras_transformer.text import ByteTokenizer
        >>> inputs, labels = next(iter(language_modeling(["to be or not"], ByteTokenizer(), 2, length=4)))
        >>> inputs["token_ids"].shape, labels.shape
        (TensorShape([2, 4]), TensorShape([2, 4]))

    References:
        Radford et al. (2019), section 2; separate texts: Krell et al., "Efficient Sequence Packing without
        Cross-contamination" (2021).
    """
    check_positive_integer(batch_size=batch_size, length=length)
    check_special_ids("tokenizer", tokenizer, ("end_id",))
    is_sampled = check_sampling(sampling, tokenizer=tokenizer)
    if is_sampled and not separate:
        raise ValueError(
            "`sampling` must be 0 unless `separate=True`, because the tokens of the stream are stored once. "
            f"Received: sampling={sampling}, separate=False"
        )

    check(not (contiguous and separate), "be False with {separate}", contiguous=contiguous, separate=separate)

    def to_arrays(chunks: Iterator[list[str]]) -> Iterator[Chunk]:
        has_tokens = False
        for chunk in chunks:
            ids = tokenized(chunk, tokenizer)
            if is_sampled:
                kept = itertools.compress(chunk, ids.lengths > 0)
                yield {"strings": RowsToStore.of_strings([_as_bytes(text) for text in kept])}
            ids = ids._replace(lengths=ids.lengths[ids.lengths > 0])
            has_tokens = has_tokens or len(ids.lengths) > 0
            yield {"texts": ids.followed_by(RowsToStore.repeated([tokenizer.end_id], len(ids.lengths)))}
        check_tokens(has_tokens)

    arrays = stored(
        text_examples(texts, columns, on_error),
        to_arrays,
        cache_dir,
        tokenizer=tokenizer,
        task="language modelling with texts" if is_sampled else "language modelling",
    )
    part, padding, samples = Shard.of(shard), padding_values(tokenizer), None
    if is_sampled:
        texts, strings = arrays.rows("texts"), arrays.rows("strings")
        samples = SampledRows.of(texts, strings, tokenizer, sampling, special_ids=1)
        arrays = arrays.with_content(f"sampling {sampling}")
    if separate:
        objective = PackedTexts(arrays, length, padding, sampled=samples)
    else:
        objective = _Stream(arrays, length, padding, shuffle)
    if contiguous:
        order: Order = ContiguousOrder(objective.count, batch_size, part)
    else:
        order = RowOrder(objective.count, batch_size, shuffle, part, last="padded")
    return batches(order, objective, seed, objective.content, nondeterministic_tokenizer(samples))


def _as_bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


class _Stream:
    """The objective of one stream of tokens, split into rows of T, whose labels are the next tokens."""

    def __init__(self, arrays: Arrays, length: int, padding: tuple[int, int], shuffle: bool) -> None:
        self._flat, self.content = arrays.rows("texts").flat, arrays.content
        self._predicted, self._length, self._padding = len(self._flat) - 1, length, padding
        # In a shuffled epoch a shift shortens the first row, which may add a row.
        self.count, self._shuffle = -(-self._predicted // length) + shuffle, shuffle

    def __call__(self, batch: Batch) -> Elements:
        """Return the inputs and labels of a batch."""
        shift = np.random.default_rng(batch.epoch_seed).integers(self._length) if self._shuffle else 0
        # Negative for the first row of a shuffled epoch, which is shortened so that each token is in one row.
        first = np.where(batch.rows >= 0, batch.rows * self._length - shift, self._predicted)
        end = np.minimum(first + self._length, self._predicted)[:, None]
        places = np.maximum(first, 0)[:, None] + np.arange(self._length + 1)  # (B, T + 1)
        tokens = gathered(self._flat, np.minimum(places, self._predicted))
        real = places[:, :-1] < end
        ids, labels = (
            np.where(real, values, padding)
            for values, padding in zip((tokens[:, :-1], tokens[:, 1:]), self._padding, strict=True)
        )
        return {"token_ids": ids}, labels
