"""SentencePiece tokenizers.

The `sentencepiece` package is a newer version of the C++ library that tensorflow_text runs inside the graph; `Unigram`
does what differs. (The operators of onnxruntime-extensions crash where TensorFlow is imported.)
"""

import base64
import functools
import json

import sentencepiece

from keras_transformer_serving import protobuf
from keras_transformer_serving.text.steps import cleaned_text, decoded_pieces, normalizer, pre_tokenizer
from keras_transformer_serving.text.tokenizer import Tokenizer, VocabularyTokenizer
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

    def content(self, id_: int) -> bytes | None:
        """Return the byte of an id such as that of "<0x0A>"."""
        return bytes([int(self.pieces[id_][1:-1], 16)]) if self._processor.is_byte(id_) else None

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
        own_map = functools.partial(precompiled_charsmap, sentence_piece_model)
        self._normalizer = normalizer(settings.get("normalizers", ()), own_map)
        pre_tokenizers = settings.get("pre_tokenizers")
        self._words = None if pre_tokenizers is None else pre_tokenizer(pre_tokenizers)
        self._unigram = Unigram.of(sentence_piece_model)
        self._keeps_spaces = keeps_spaces(processor)
        special_ids = {*self.special_token_ids.values(), *self.languages.values()}
        self._ids_of_pieces = {piece: id_ for id_, piece in enumerate(vocabulary) if id_ not in special_ids}
        if self._words is None:
            self._initial = self._following = [piece.replace(_SPACE, " ") for piece in self.pieces]
        else:
            self._initial, self._following = decoded_pieces(self.pieces, settings["decoders"])
            self._skipped_ids = special_ids - {self.unknown_id}
            for id_ in range(len(vocabulary), len(self.pieces)):
                self._initial[id_] = self._following[id_] = ""
        for contents in (self._initial, self._following):
            for id_ in special_ids:
                contents[id_] = ""
            contents[self.unknown_id] = _UNKNOWN

    def _normalize(self, text: str) -> str:
        return self._normalizer(text)

    def _cut_part(self, part: str, starts: bool) -> list[int]:
        words = [part] if self._words is None else self._words(part, starts)
        return [id_ for word in words for id_ in self._cut(word)]

    def _cut(self, text: str) -> list[int]:
        if self._unigram is None:
            pieces = self._processor.encode(text, out_type=str)
        else:
            pieces = [piece for piece, _ in self._unigram(self._processor.normalize(text))]
        return [self._ids_of_pieces.get(piece, self.unknown_id) for piece in pieces]

    def _join(self, ids: list[int]) -> str:
        first, others = ids[:1], ids[1:]
        text = "".join([*(self._initial[id_] for id_ in first), *(self._following[id_] for id_ in others)])
        if self._words is None:
            # The prefix space that the model adds, or the leading spaces that it ignores.
            text = text.removeprefix(" ") if self._keeps_spaces else text.lstrip(" ")
        return cleaned_text(text) if self._settings.get("clean_up_texts") else text


def keeps_spaces(processor: sentencepiece.SentencePieceProcessor) -> bool:
    """Return whether a model adds a prefix space and preserves all spaces of the text.

    Models trained with `keras_transformer.text.SentencePieceTokenizer.train` do so, except those with NMT
    normalisation.
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
