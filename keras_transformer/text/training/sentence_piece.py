"""Training of SentencePiece models from texts or files."""

import io
import itertools
import re
from collections.abc import Iterator
from typing import Any, Literal, Self, get_args

import sentencepiece

from keras_transformer.text.training.corpus import Texts, read_texts
from keras_transformer_options.arguments import ArgumentError, check_one_of, is_integer
from keras_transformer_options.task_options import Normalization

Model = Literal["unigram", "bpe", "char", "word"]

PAD_ID, UNKNOWN_ID, START_ID, END_ID = 0, 1, 2, 3
_MODELS = ("unigram", "bpe", "char", "word")
_NORMALIZATIONS = get_args(Normalization)
_SMALLEST_VOCABULARY = 5
_NUM_BYTES = 256
_SMALLEST_COVERAGE = 0.98
# The sums of the unigram trainer, and hence the model, depend on the number of threads: fix it for all machines.
_NUM_THREADS = 16
_NO_LENGTH_LIMIT = 2**30
# The trainer marks unknown characters with U+2585 and silently skips any text that contains it.
_RESERVED = "\u2585"
# In the trainer's error about a vocabulary that is too small: "5 vs 275".
_SMALLEST_SIZE = re.compile(r"smaller than required_chars\. \d+ vs (\d+)")


class SentencePieceTraining:
    """Mixin that trains a tokenizer of a SentencePiece model."""

    @classmethod
    def train(
        cls,
        texts: Texts,
        vocabulary_size: int = 8000,
        model: Model = "unigram",
        *,
        character_coverage: float = 1.0,
        normalization: str = "identity",
        byte_fallback: bool = True,
    ) -> Self:
        """Train a tokenizer; the same texts and arguments give the same model.

        Args:
            texts: an iterable of texts (str or UTF-8 bytes) and `pathlib.Path`s of UTF-8 files, whose lines
                are the texts; or one such path. Empty texts are skipped.
            vocabulary_size: the maximum number of pieces, including the four special tokens and the 256 bytes of
                `byte_fallback`. The trained vocabulary is smaller if the texts do not have enough pieces.
            model: "unigram", "bpe", "char" or "word".
            character_coverage: the fraction of the characters in `texts` that get a piece, from 0.98 to 1.
            normalization: "identity", which is lossless, or a rule of SentencePiece: "nfkc" for Unicode's NFKC,
                "nmt_nfkc" also for one space in place of any white space, invisible characters and line ends; "nfkc_cf"
                and "nmt_nfkc_cf" also fold case. Models that read texts, such as translators, need "nmt_nfkc"; those
                that write them with all their characters, such as language models, "identity".
            byte_fallback: whether a character without a piece becomes its UTF-8 bytes instead of `unknown_id`. The
                bytes take 256 ids, so that texts have 1.4 to 3.4 % more tokens with a vocabulary of 2,000, and 0.3 to
                0.5 % more with one of 8,000 (spa-eng and Don Quijote, `benchmarks/byte_fallback.py`). Without byte
                fallback, a tokenizer trained on Don Quijote does not reproduce 1,225 of the 113,322 Spanish sentences
                of spa-eng.

        Raises:
            ValueError: if `texts` is empty or not UTF-8, or if `vocabulary_size` is too small for its characters.

        Example:
            >>> from keras_transformer.text import SentencePieceTokenizer
            >>> SentencePieceTokenizer.train(["hello world"], 12, "char", byte_fallback=False).vocabulary_size
            12
        """
        _check(vocabulary_size, model, character_coverage, normalization, byte_fallback)
        source = _Texts(texts)
        if source.first is None:
            raise ArgumentError("{texts} must hold at least one text that is not empty", texts=texts)
        writer = io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(source),
                model_writer=writer,
                vocab_size=vocabulary_size,
                model_type=model,
                character_coverage=character_coverage,
                normalization_rule_name=normalization,
                byte_fallback=byte_fallback,
                pad_id=PAD_ID,
                unk_id=UNKNOWN_ID,
                bos_id=START_ID,
                eos_id=END_ID,
                hard_vocab_limit=False,
                # The "nmt" rules turn line ends, byte order marks and others into spaces.
                remove_extra_whitespaces=normalization.startswith("nmt"),
                max_sentence_length=_NO_LENGTH_LIMIT,
                num_threads=_NUM_THREADS,
                minloglevel=2,
            )
        except RuntimeError as error:
            if (smallest := _SMALLEST_SIZE.search(str(error))) is None:
                raise source.error or ValueError(
                    f"`texts` must be texts that sentencepiece can learn from. Received: its error {error}"
                ) from None
            with_bytes = ", each of the 256 bytes of {byte_fallback}" if byte_fallback else ""
            raise ArgumentError(
                f"{{vocabulary_size}} must be at least {smallest[1]} for these texts: each of their characters"
                f"{with_bytes} and each special token needs an id",
                vocabulary_size=vocabulary_size,
                byte_fallback=byte_fallback,
            ) from None
        return cls(writer.getvalue())  # type: ignore[call-arg]


def _check(
    vocabulary_size: Any, model: Any, character_coverage: Any, normalization: Any, byte_fallback: bool
) -> None:
    # Unigram and BPE models need a piece for each character too, which the trainer counts.
    with_bytes = byte_fallback and model in ("char", "word")
    smallest = _SMALLEST_VOCABULARY + _NUM_BYTES * with_bytes
    if not is_integer(vocabulary_size) or not smallest <= vocabulary_size < 2**31:
        needed = (
            f"the four special ids{', the 256 bytes of `byte_fallback`' if with_bytes else ''} and a piece"
        )
        raise ArgumentError(
            f"{{vocabulary_size}} must be an integer from {smallest} ({needed}) to {2**31 - 1}",
            vocabulary_size=vocabulary_size,
            byte_fallback=byte_fallback,
        )
    check_one_of(_MODELS, model=model)
    check_one_of(_NORMALIZATIONS, normalization=normalization)
    if not _SMALLEST_COVERAGE <= character_coverage <= 1:
        raise ValueError(
            f"`character_coverage` must be between {_SMALLEST_COVERAGE} and 1. "
            f"Received: character_coverage={character_coverage!r}"
        )


class _Texts:
    """The texts for the trainer, and the error raised while iterating over them, which the trainer hides."""

    def __init__(self, texts: Texts):
        self.error: Exception | None = None
        rows = (text.replace(_RESERVED, " ") for text in read_texts(texts) if text)
        self.first = next(rows, None)
        self._rows = itertools.chain([self.first], rows)

    def __iter__(self) -> Iterator[str]:
        try:
            for text in self._rows:
                # The trainer strips trailing line ends of a text, so add a space after them.
                yield text + " " if text[-1] in "\r\n" else text
        except Exception as error:
            self.error = error
            raise
