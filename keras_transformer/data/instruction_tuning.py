"""Batches of prompts and completions, with the loss on completions only."""

import logging
import os
from collections.abc import Iterator

import numpy as np

from keras_transformer.data.batches import Dataset, batches
from keras_transformer.data.buckets import Shapes
from keras_transformer.data.epochs import RowOrder, Shard
from keras_transformer.data.examples import stored
from keras_transformer.data.packing import PackedTexts
from keras_transformer.data.pair_sources import PairReader, Pairs, Row
from keras_transformer.data.storage import Chunk, RaggedRows, RowsToStore, within
from keras_transformer.data.tokenized_texts import Tokenizer, check_special_ids, padding_values, tokenized
from keras_transformer_options.arguments import ArgumentError, check_positive_integer
from keras_transformer_options.columns import Columns

_LOGGER = logging.getLogger("keras_transformer")


def instruction_tuning(
    pairs: Pairs,
    tokenizer: Tokenizer,
    batch_size: int = 32,
    *,
    columns: Columns = None,
    on_error: str = "raise",
    length: int = 256,
    shuffle: bool = True,
    seed: int = 0,
    shard: tuple[int, int] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> Dataset:
    r"""Make batches of prompts and completions for a decoder-only model, with the loss on completions only.

    For a prompt x and its completion y, which an end token follows, the objective is

    $$\max_\theta \sum_t \log p_\theta(y_t \mid x, y_1 \dots y_{t-1}).$$

    The labels of prompt tokens are the padding value, which losses and metrics ignore. Rows are densely packed with
    complete pairs, which do not attend to each other. Prompt and completion are tokenised separately, as
    `pipelines.TextGeneration` tokenises a prompt; a template such as "Question: …\nAnswer:" is part of the prompt, a
    space after it part of the completion.

    Args:
        pairs: (prompt, completion) str; paths of files; or a dataset, as for `translation_pairs`.
        tokenizer: a tokenizer with an end id. Inputs and labels are padded with its `pad_id`; if that is None, inputs
            are padded with `end_id` and labels with −1.
        batch_size: B, the number of rows in every batch; the last batch is completed with rows of padding.
        columns: the columns of prompt and completion in files, see `read_examples`; by default files must have only
            two.
        on_error: "raise" to raise an error for malformed lines of files, "skip" to skip them with a warning.
        length: T, the length of a row. Longer pairs are dropped with a warning of the logger "keras_transformer".
        shuffle: whether the order of rows differs in each epoch.
        seed: the seed of shuffling.
        shard: (index, count), to read one shard of each batch as one of several workers, see `translation_pairs`.
        cache_dir: a folder for the ids, see `translation_pairs`.

    Returns:
        A dataset of known cardinality with elements `(inputs, labels (B, T))`, where inputs are "token_ids",
        "segment_ids" and "positions", each (B, T), as in `language_modeling(separate=True)`.

    Raises:
        FileNotFoundError: if a path does not exist.
        ValueError: if `pairs` is empty, malformed or all too long, or the tokenizer has no end id.

    Example:
        >>> from keras_transformer.text import ByteTokenizer
        >>> pairs = [("2 + 3 =", " 5"), ("7 + 2 =", " 9")]
        >>> inputs, labels = next(iter(instruction_tuning(pairs, ByteTokenizer(), 1, length=10, shuffle=False)))
        >>> labels.numpy()  # of the first pair: the space, the digit and the end token
        array([[ 0,  0,  0,  0,  0,  0, 36, 57,  3,  0]], dtype=int32)

    References:
        Ouyang et al., "Training language models to follow instructions with human feedback" (2022), section 3.5: SFT.
    """
    check_positive_integer(batch_size=batch_size, length=length)
    check_special_ids("tokenizer", tokenizer, ("end_id",))

    def to_arrays(chunks: Iterator[list[Row]]) -> Iterator[Chunk]:
        has_tokens = False
        for chunk in chunks:
            _, prompts, completions = zip(*chunk, strict=True)
            prompts, completions = (tokenized(side, tokenizer) for side in (prompts, completions))
            ends = RowsToStore.repeated([tokenizer.end_id], len(chunk))
            texts = prompts.followed_by(completions).followed_by(ends)
            is_label = within(texts.lengths) >= np.repeat(prompts.lengths, texts.lengths)
            has_tokens = has_tokens or len(texts.values) > len(chunk)
            yield {"texts": texts, "is_label": is_label}
        if not has_tokens:
            raise ArgumentError("{pairs} must hold at least one token. Received: none")

    arrays = stored(
        PairReader(columns, on_error=on_error).examples([pairs]),
        to_arrays,
        cache_dir,
        tokenizer=tokenizer,
        task="instruction tuning",
    )
    _check_lengths(arrays.rows("texts"), length)
    objective = PackedTexts(arrays, length, padding_values(tokenizer), split=False)
    order = RowOrder(objective.count, batch_size, shuffle, Shard.of(shard), last="padded")
    return batches(order, objective, seed, objective.content)


def _check_lengths(texts: RaggedRows, length: int) -> None:
    """Warn about texts that are too long for a row; raise a ValueError if all are."""

    def inputs(start: int, end: int) -> np.ndarray:  # the end token is not an input
        return texts.lengths(start, end)[:, None] - 1

    counts = Shapes.of_rows(1, length, 1).count_lengths(inputs, [texts.count])
    if not counts.lengths.any():
        sizes = inputs(0, texts.count)
        raise ArgumentError(
            f"{{length}} must be at least {sizes[sizes > 0].min()}, the number of tokens of the shortest of the "
            f"{texts.count} pairs",
            length=length,
        )
    if too_long := int(counts.too_long.sum()):
        _LOGGER.warning(
            "instruction_tuning drops %d of %d pairs: more than %d tokens", too_long, texts.count, length
        )
