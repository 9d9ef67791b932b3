"""Audio files with their transcripts, and batches of them to train a recognizer of speech."""

import hashlib
import itertools
import logging
import os
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Unpack

import numpy as np

from keras_transformer.data.batches import Dataset, batches
from keras_transformer.data.buckets import Shapes
from keras_transformer.data.epochs import Batch, Shard
from keras_transformer.data.examples import together
from keras_transformer.data.files import FileOptions, picked_examples
from keras_transformer.data.storage import RowsToStore, in_memory
from keras_transformer.data.tokenized_texts import Tokenizer, check_special_ids, token_lists
from keras_transformer_options.arguments import (
    ArgumentError,
    check_positive_finite,
    check_positive_integer,
)
from keras_transformer_options.columns import ColumnPicker, Columns, MalformedRecordError, Pick
from keras_transformer_options.files import Paths
from keras_transformer_options.records import Record
from keras_transformer_options.tasks import TRANSCRIPT_COLUMNS
from keras_transformer_serving.audio import checked_audio, read_wav

Audio = str | os.PathLike[str] | np.ndarray

_UNITS = 100  # in a second of audio: lengths of batches are multiples of eight of them
_RATE = ", or their rate as `sample_rate`"
_LOGGER = logging.getLogger("keras_transformer")


def read_transcripts(
    paths: Paths,
    columns: Columns = None,
    *,
    sample_rate: int = 16000,
    resample: bool = False,
    **options: Unpack[FileOptions],
) -> list[tuple[pathlib.Path, str]]:
    """Read the paths of WAV files and their transcripts from tables, and check the WAV files.

    The columns are "path" and "sentence" (Common Voice), "file_name" and "transcription" (audio folders of
    `datasets`), "audio_filepath" and "text" (NeMo), or "path" and "text"; without these, the only two columns.

    Args:
        paths: the tables, see `read_examples`. The paths in a table are relative to its folder.
        columns: the columns of path and transcript, by default as above; see `read_examples`.
        sample_rate: the number of samples in a second that the WAV files must have.
        resample: whether files may have other sample rates, to be resampled by `speech_recognition`.
        **options: as for `stream_examples`. A line is also malformed if there is no such file, it is not a WAV file of
            integers, has several channels or another sample rate, or is empty.

    Returns:
        The pairs (path, transcript) in order.

    Raises:
        FileNotFoundError: if a table does not exist.
        ImportError: if a file is to be resampled, and SciPy is not installed.
        ValueError: as `read_examples`, or if the columns are not two.

    Example:
        >>> kt.data.read_transcripts("commands.tsv")  # doctest: +SKIP
        [(PosixPath('clips/0001.wav'), 'turn left'), ...]
    """
    check_positive_integer(sample_rate=sample_rate)
    picker = _AudioPicker(columns, sample_rate, resample)
    return [(pathlib.Path(path), text) for path, text in picked_examples(paths, picker, **options)]


class _AudioPicker(ColumnPicker):
    """The columns of path and transcript, whose pick also reads the WAV file."""

    def __init__(self, columns: Columns, sample_rate: int, resample: bool) -> None:
        super().__init__(columns, 2, known=TRANSCRIPT_COLUMNS)
        self.sample_rate, self.resample = sample_rate, resample

    def for_file(self, path: str | os.PathLike[str], *arguments: Any) -> Pick:
        """Return the function from a table's record to a path and a transcript."""
        pick, folder = super().for_file(path, *arguments), pathlib.Path(path).parent

        def checked(record: Record) -> tuple[str, ...] | None:
            example = pick(record)
            if example is None:
                return None
            name, text = example
            try:
                read_wav(folder / name, self.sample_rate, self.resample)
            except OSError as error:
                raise MalformedRecordError(f"{error.strerror}: {error.filename}") from None
            except ValueError as error:
                advice = _RATE if "samples a second" in str(error) else ""
                raise MalformedRecordError(f"{error}{advice}") from None
            return str(folder / name), text

        return checked


def speech_recognition(
    audio: Iterable[Audio],
    texts: Iterable[str],
    tokenizer: Tokenizer,
    batch_size: int = 16,
    *,
    output_lengths: Callable[[np.ndarray], np.ndarray] | None = None,
    sample_rate: int = 16000,
    resample: bool = False,
    max_seconds: float = 30.0,
    max_length: int = 512,
    length_buckets: int = 4,
    shuffle: bool = True,
    seed: int = 0,
    shard: tuple[int, int] | None = None,
) -> Dataset:
    """Make batches of audio and texts to train a `models.CTC`.

    Files are read when the dataset is made, to check them, and again for each batch, so that audio need not fit into
    memory. Audio of similar lengths is batched together: batches have one of a few shapes.

    Args:
        audio: floats (N,) at `sample_rate`, usually in [−1, 1], or the path of a WAV file, for each text.
        texts: the texts.
        tokenizer: a tokenizer whose `pad_id` is that of the model.
        batch_size: the number of rows in each batch; the last of each shape may be smaller.
        output_lengths: a function from the numbers of samples (n,) to the numbers of predictions, such as the encoder's
            method. A text of U tokens, R of them equal to the one before, needs U + R predictions.
        sample_rate: the number of samples in a second.
        resample: whether to resample files of other sample rates, which are refused otherwise.
        max_seconds: the maximum duration of audio.
        max_length: the maximum number of tokens of a text. Longer audio and texts, and texts that need more predictions
            than their audio gives, are dropped with a warning of the logger "keras_transformer".
        length_buckets: the maximum number of shapes, chosen to minimize padding.
        shuffle: whether to reshuffle in each epoch.
        seed: the seed of shuffling.
        shard: (index, count), to read one shard of each batch as one of several workers, see `translation_pairs`.

    Returns:
        A dataset of known cardinality with elements `({"audio": (B, N), "lengths": (B,)}, labels (B, U))`: float32
        padded with zeros, the numbers of samples, and int32 ids padded with `pad_id`.

    Raises:
        FileNotFoundError: if a file does not exist.
        ImportError: if a file is to be resampled, and SciPy is not installed.
        ValueError: if audio is not finite, empty, or has another sample rate or several channels, a text is not a
            string or is empty, or nothing is short enough.

    Example:
        >>> from keras_transformer.text import ByteTokenizer
        >>> audio = [np.zeros(16000, "float32"), np.zeros(9000, "float32")]
        >>> dataset = speech_recognition(audio, ["go left", "stop"], ByteTokenizer(), 2, shuffle=False)
        >>> inputs, labels = next(iter(dataset))
        >>> inputs["audio"].shape, inputs["lengths"].numpy().tolist(), labels.shape
        (TensorShape([2, 16640]), [16000, 9000], TensorShape([2, 8]))
    """
    check_special_ids("tokenizer", tokenizer, ("pad_id",))
    check_positive_integer(
        batch_size=batch_size, sample_rate=sample_rate, max_length=max_length, length_buckets=length_buckets
    )
    check_positive_finite(max_seconds=max_seconds)
    part, unit = Shard.of(shard), -(-sample_rate // _UNITS)
    limits = -(-int(max_seconds * sample_rate) // unit), max_length
    shapes = Shapes.of_pairs(batch_size, None, limits, length_buckets, 8)
    sources, transcripts, samples, content = _checked(audio, texts, sample_rate, resample)
    ids = token_lists(transcripts, tokenizer)
    units = np.stack([-(-samples // unit), [len(row) for row in ids]], axis=1)
    kept = np.flatnonzero(_fitting(units, shapes, ids, samples, output_lengths))
    sources, samples, units = [sources[row] for row in kept], samples[kept], units[kept]
    arrays = in_memory([{"ids": RowsToStore.of_lists([ids[row] for row in kept])}])
    order = shapes.order(
        arrays, lambda start, end: units[start:end], len(kept), shuffle, part, complete=False
    )

    def audio_and_ids(batch: Batch) -> tuple[dict[str, np.ndarray], np.ndarray]:
        rows, lengths = batch.rows, batch.lengths
        padded = np.zeros((len(rows), lengths[0] * unit), np.float32)
        for values, row in zip(padded, rows, strict=True):
            found = checked_audio(sources[row], sample_rate, resample)
            if len(found) != samples[row]:
                raise ValueError(f"Files must not change while they are read. Received: {sources[row]}")
            values[: len(found)] = found
        labels = arrays.rows("ids").padded(rows, lengths[1], tokenizer.pad_id)
        return {"audio": padded, "lengths": samples[rows].astype(np.int32)}, labels

    return batches(order, audio_and_ids, seed, [*arrays.content, samples, content])


def _checked(
    audio: Iterable[Audio], texts: Iterable[str], sample_rate: int, resample: bool
) -> tuple[list[Audio], list[str], np.ndarray, str]:
    """Return audio, texts, the numbers of samples (n,) and a hash of the samples, or raise a ValueError."""
    sources, transcripts, counts, digest = [], [], [], hashlib.blake2b(digest_size=16)
    for index, (source, text) in enumerate(together(audio=audio, texts=texts)):
        if not isinstance(text, str) or not text.strip():
            raise ArgumentError("{texts} must be strings that are not empty", **{f"texts[{index}]": text})
        try:
            samples = checked_audio(source, sample_rate, resample)
        except ValueError as error:
            raise ArgumentError("{} is invalid: {reason!s}", f"audio[{index}]", reason=error) from None
        if not len(samples) or not np.isfinite(samples).all():
            received = "NaN or infinite samples" if len(samples) else "no samples"
            raise ArgumentError(
                "{} must have finite samples. Received: {received!s}", f"audio[{index}]", received=received
            )
        digest.update(samples.tobytes())
        sources.append(source if isinstance(source, str | os.PathLike) else samples)
        transcripts.append(text)
        counts.append(len(samples))
    return sources, transcripts, np.array(counts), digest.hexdigest()


def _fitting(
    units: np.ndarray,
    shapes: Shapes,
    ids: Sequence[Sequence[int]],
    samples: np.ndarray,
    output_lengths: Callable[[np.ndarray], np.ndarray] | None,
) -> np.ndarray:
    """Return a mask (n,) of the examples that are short enough, and warn about the others."""
    too_long, needed = ~shapes.fit(units), units[:, 1] + [_repetitions(row) for row in ids]
    given = np.full(len(ids), np.inf) if output_lengths is None else np.asarray(output_lengths(samples))
    too_fast = ~too_long & (needed > given)
    fitting = ~(too_long | too_fast)
    limits = f"audio over {shapes.limits[0] / _UNITS:g} seconds or texts over {shapes.limits[1]} tokens"
    reasons = {limits: too_long, "texts that are too long for their audio": too_fast}
    received = " and ".join(
        f"{mask.sum():,} of {len(mask):,} with {reason}" for reason, mask in reasons.items() if mask.any()
    )
    if not fitting.any():
        raise ArgumentError(
            "{audio} must have an example that is short enough. Received: {received!s}", received=received
        )
    if received:
        _LOGGER.warning("Dropping examples: %s", received)
    return fitting


def _repetitions(row: Sequence[int]) -> int:
    """Return how many ids are equal to the one before."""
    return sum(id_ == before for before, id_ in itertools.pairwise(row))
