"""SentencePiece tokenizers.

The `sentencepiece` package is a newer version of the C++ library that tensorflow_text runs inside the graph; `Unigram`
does what differs. (The operators of onnxruntime-extensions crash where TensorFlow is imported.)
"""

import base64
import json

import sentencepiece

from keras_transformer_serving import protobuf
from keras_transformer_serving.text.base import Tokenizer, VocabularyTokenizer
from keras_transformer_serving.text.unigram import Unigram

_SPACE = "\u2581"
_UNKNOWN = " \u2047 "
_NORMALIZER, _CHARSMAP = 3, 2  # fields of a model and of its normaliser


class SentencePieceTokenizer(Tokenizer):
    """Convert text to ids and back with a SentencePiece model.

    Args:
        model: a serialised SentencePiece model.
    """

    def __init__(self, model: bytes) -> None:
        self._processor = processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.pad_id = processor.pad_id()
        self.unknown_id, self.start_id, self.end_id = (
            processor.unk_id(),
            processor.bos_id(),
            processor.eos_id(),
        )
        self.pieces = [processor.id_to_piece(id_) for id_ in range(processor.vocab_size())]
        special_ids = (self.pad_id, self.unknown_id, self.start_id, self.end_id)
        self.special_token_ids = {self.pieces[id_]: id_ for id_ in special_ids if id_ >= 0}
        self._unigram = Unigram.of(model)
        self.guard = processor.decode([self.unknown_id]) if keeps_spaces(processor) else ""

    def _cut(self, text: str) -> list[int]:
        if self._unigram is not None:
            return [id_ for _, id_ in self._unigram(self._processor.normalize(text))]
        ids: list[int] = self._processor.encode(text)
        return ids

    def _join(self, ids: list[int]) -> str:
        if not self.guard:
            return self._text(ids)
        # As in the TensorFlow graph: a token before the text keeps its leading spaces.
        return self._text([self.unknown_id, *ids]).removeprefix(self.guard).removeprefix(" ")

    def _text(self, ids: list[int]) -> str:
        # A model without a piece for spaces, such as a word model, decodes U+2581 from bytes unchanged.
        text: str = self._processor.decode(ids)
        return text.replace(_SPACE, " ")


class MarianT5Tokenizer(VocabularyTokenizer):
    """Convert text to ids and back with a SentencePiece model and a separate vocabulary of its pieces.

    Args:
        model: the content of the tokenizer's file.
    """

    def __init__(self, model: bytes) -> None:
        content = json.loads(model)
        settings = content["settings"]
        vocabulary = content["vocabulary"]
        super().__init__(vocabulary, settings)
        sentence_piece_model = base64.b64decode(content["model"])
        processor = sentencepiece.SentencePieceProcessor(model_proto=sentence_piece_model)
        self._processor = processor
        if settings.get("normalized_tokens"):
            content_of_map = character_normalizer(precompiled_charsmap(sentence_piece_model))
            self._normalizer = sentencepiece.SentencePieceProcessor(model_proto=content_of_map)
        self._unigram = Unigram.of(sentence_piece_model)
        self._keeps_spaces = keeps_spaces(processor)
        special_ids = {*self.special_token_ids.values(), *self.languages.values()}
        self._ids_of_pieces = {piece: id_ for id_, piece in enumerate(vocabulary) if id_ not in special_ids}
        self._contents = [piece.replace(_SPACE, " ") for piece in self.pieces]
        for id_ in special_ids:
            self._contents[id_] = ""
        self._contents[self.unknown_id] = _UNKNOWN

    def _normalize(self, text: str) -> str:
        if not self._settings.get("normalized_tokens"):
            return text  # the model normalises it
        normalized: str = self._normalizer.normalize(text)
        return normalized

    def _cut(self, text: str) -> list[int]:
        if self._unigram is None:
            pieces = self._processor.encode(text, out_type=str)
        else:
            pieces = [piece for piece, _ in self._unigram(self._processor.normalize(text))]
        return [self._ids_of_pieces.get(piece, self.unknown_id) for piece in pieces]

    def _join(self, ids: list[int]) -> str:
        text = "".join(self._contents[id_] for id_ in ids)
        # The prefix space that the model adds, or the leading spaces that it ignores.
        return text.removeprefix(" ") if self._keeps_spaces else text.lstrip(" ")


def keeps_spaces(processor: sentencepiece.SentencePieceProcessor) -> bool:
    """Return whether a model adds a prefix space and preserves all spaces of the text.

    Models trained with `keras_transformer.text.SentencePieceTokenizer.train` do so, except those with NMT
    normalisation.

    Args:
        processor: the model's processor.
    """
    return bool(processor.normalize("  a") == "\u2581\u2581\u2581a")


def precompiled_charsmap(model: bytes) -> bytes:
    """Return the character map of a serialised model, b"" if it has none."""
    specs = [value for number, value in protobuf.fields(memoryview(model)) if number == _NORMALIZER]
    maps = [
        bytes(value)
        for spec in specs
        if isinstance(spec, memoryview)
        for number, value in protobuf.fields(spec)
        if number == _CHARSMAP and isinstance(value, memoryview)
    ]
    return maps[-1] if maps else b""


def character_normalizer(charsmap: bytes) -> bytes:
    """Return a model that normalises texts by a character map and does not change spaces; it has no pieces of texts.

    Args:
        charsmap: the map, in SentencePiece's format.
    """
    message = protobuf.message
    unknown = message((1, "<unk>"), (3, 2))
    letter = message((1, "a"))  # a model must have a piece
    without_changes = ((3, False), (4, False), (5, False))  # prefix space, removal and escapes of spaces
    return message(
        (1, unknown),
        (1, letter),
        (2, message((3, 4))),  # of characters
        (_NORMALIZER, message((_CHARSMAP, charsmap), *without_changes)),
    )
