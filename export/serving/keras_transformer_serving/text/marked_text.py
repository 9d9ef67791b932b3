"""Texts with tags, placeholders or a glossary: the parts that are translated, and the text of their translations."""

import bisect
import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Self

from keras_transformer_serving.jobs import Steps, gather
from keras_transformer_serving.text import alignment, glossary, markup
from keras_transformer_serving.text.alignment import AlignedText, Score
from keras_transformer_serving.text.glossary import Glossary, Term
from keras_transformer_serving.text.markup import Segment
from keras_transformer_serving.text.splitting import Split

SplitText = Callable[[str], Steps[Split]]


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a text without its tags.

    Attributes:
        text: the part.
        has_tags: whether there are tags within it.
        terms: the terms of the glossary in it.
        is_soft: whether the model may keep other translations of the terms.
    """

    text: str
    has_tags: bool = False
    terms: tuple[Term, ...] = ()
    is_soft: bool = False

    @property
    def is_marked(self) -> bool:
        """True if there are tags or terms in the part."""
        return self.has_tags or bool(self.terms)

    def finish(self, output: str, score: Score) -> Steps[str | AlignedText]:
        """Return the translation of the part with the terms of the glossary, and aligned if there are tags within it.

        Args:
            output: the translation.
            score: the steps from sources and a target to log-probabilities; see `alignment`.
        """
        missing = glossary.missing(output, self.terms)
        if not self.has_tags and not missing:
            return output
        translation = yield from alignment.align(self.text, output, score)
        if not missing:
            return translation
        return (yield from glossary.apply(self.text, translation, missing, self.is_soft, score))


class MarkedText:
    """A text with tags, placeholders or terms of a glossary; like a `Split`, it has parts, which are translated.

    Args:
        segments: the segments of the text.
        between: the strings before, between and after them.
        splits: the parts of each segment.
        terms: the glossary, or None.

    Attributes:
        parts: the texts of the parts.
        of_parts: the parts.

    Example:
        >>> text = run_one(MarkedText.of("<p>La <b>casa</b> roja</p>", "html"), {})
        >>> text.parts
        ('La casa roja',)
        >>> text.join(["The red house"])
        '<p>The red house<b></b></p>'
    """

    def __init__(
        self,
        segments: Sequence[Segment],
        between: Sequence[str],
        splits: Sequence[Split],
        terms: Glossary | None,
    ) -> None:
        self._segments, self._between, self._splits = segments, between, splits
        self.of_parts = [
            part
            for segment, split in zip(self._segments, self._splits, strict=True)
            for part in _parts(segment, split, terms)
        ] or [Part("")]
        self.parts = tuple(part.text for part in self.of_parts)

    @classmethod
    def of(
        cls,
        text: str,
        tag_handling: str | None = None,
        terms: Glossary | None = None,
        split: SplitText | None = None,
        placeholders: markup.Placeholders | None = None,
    ) -> Steps[Self]:
        """Return a text with tags, placeholders or terms of a glossary.

        Args:
            text: the text.
            tag_handling: "html", "placeholders", or None for a text without tags.
            terms: the glossary, or None.
            split: the steps that split a text into parts; None to translate each segment as one part.
            placeholders: the kinds of placeholders; see `markup.parse`.

        Raises:
            ValueError: if the tags are not closed, or not nested, or a kind of placeholders is unknown.
        """
        segments, between = [Segment(text, [], False)], ["", ""]
        if tag_handling is not None:
            segments, between = markup.parse(text, tag_handling, placeholders)
        texts = [segment.text for segment in segments]
        splits = [*map(Split.whole, texts)] if split is None else (yield from gather(map(split, texts)))
        return cls(segments, between, splits, terms)

    def join(self, outputs: Sequence[str | AlignedText]) -> str:
        """Return the text of the translations of the parts."""
        remaining = iter(outputs)
        strings = [self._between[0]]
        for segment, split, between in zip(self._segments, self._splits, self._between[1:], strict=True):
            translation = _joined(split, [*itertools.islice(remaining, len(split.parts))])
            strings += [segment.with_tags(translation), between]
        return "".join(strings)


def _parts(segment: Segment, split: Split, terms: Glossary | None) -> list[Part]:
    places = sorted(segment.places())
    parts, start = [], 0
    for text, before in zip(split.parts, split.between, strict=False):
        start += len(before)
        inside = bisect.bisect_left(places, start + len(text)) > bisect.bisect_right(places, start)
        found = () if terms is None else tuple(terms.terms(text))
        parts.append(Part(text, inside, found, terms is not None and terms.is_soft))
        start += len(text)
    return parts


def _joined(split: Split, outputs: Sequence[str | AlignedText]) -> AlignedText:
    """Return the translation of a segment, from those of its parts and the strings between them."""
    pieces = [alignment.copied(split.between[0])]
    for part, output, between in zip(split.parts, outputs, split.between[1:], strict=True):
        aligned = alignment.whole(part, output) if isinstance(output, str) else output
        pieces += [aligned, alignment.copied(between)]
    sources = itertools.chain.from_iterable(zip(split.between, [*split.parts, ""], strict=True))
    words: list[alignment.AlignedWord] = []
    place = source_place = 0
    for piece, source in zip(pieces, sources, strict=False):
        words += (word.moved(place, source_place) for word in piece.words)
        place += len(piece.text)
        source_place += len(source)
    return AlignedText("".join(piece.text for piece in pieces), tuple(words))
