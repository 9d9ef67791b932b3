"""Places in a translation of the elements of its source, by the alignment of words."""

import bisect
import dataclasses
import itertools
import operator
from collections.abc import Sequence

from keras_transformer_serving.text.alignment import AlignedText, is_lexical, words_of


@dataclasses.dataclass(eq=False)
class Element:
    """An element, or a tag or placeholder without words, of a text without its tags.

    Attributes:
        start: its place in the text.
        end: the place after it; `start` if it has no words.
        opening: its start tag, or all of it if it has no words.
        closing: its end tag.
        elements: the elements in it.
        spaced: whether a space beside it was taken out with it.
    """

    start: int
    end: int
    opening: str = ""
    closing: str = ""
    elements: list["Element"] = dataclasses.field(default_factory=list)
    spaced: bool = False

    @property
    def is_empty(self) -> bool:
        """True if it has no words."""
        return self.start == self.end


@dataclasses.dataclass(frozen=True, order=True)
class ElementPlace:
    """The place of an element in a translation.

    Attributes:
        start: its first character.
        end: the place after it; `start` if it has no words.
        number: the index of the element.
        words: the indices of its words, begin and end.
        space_before: a space before it, which was taken out of the source.
        space_after: a space after it.
    """

    start: int
    end: int
    number: int
    words: tuple[int, int] = (0, 0)
    space_before: str = ""
    space_after: str = ""


class Placement:
    """The places in a translation of the elements of its source."""

    def __init__(self, source: str, translation: AlignedText) -> None:
        self._source, self._words = source, translation.words
        self._lexical = [is_lexical(translation.text, word) for word in self._words]
        self._starts = [word.start for word in self._words]
        self._lexical_counts = [0, *itertools.accumulate(self._lexical)]
        # The number of aligned words with letters or digits before each word.
        aligned = (word.source is not None for word in self._words)
        self._counts = [0, *itertools.accumulate(map(operator.and_, aligned, self._lexical))]
        self._source_words = [*words_of(source)]
        self._source_starts = [word.start for word in self._source_words]
        self._source_counts = [
            0,
            *itertools.accumulate(is_lexical(source, word) for word in self._source_words),
        ]

    def of_siblings(
        self, elements: Sequence[Element], around: Element | None = None, span: ElementPlace | None = None
    ) -> list[ElementPlace]:
        """Return the places of elements, in their order in the translation. They do not overlap.

        Args:
            elements: the elements.
            around: the element that they are in; None for the source itself.
            span: its place.
        """
        if not elements:
            return []
        source = (0, len(self._source)) if around is None else (around.start, around.end)
        words = (0, len(self._words)) if span is None else span.words
        links = sorted(
            (sum(word.source) / 2, index)
            for index, word in enumerate(self._words[slice(*words)], words[0])
            if word.source is not None
        )
        runs: dict[int, tuple[int, int]] = {}
        occupied: list[tuple[int, int]] = []
        for number, element in enumerate(elements):
            run = None if element.is_empty else self._run(element, source, words, links, occupied)
            if run is not None:
                runs[number] = run
                bisect.insort(occupied, run)
        spans, numbers = [], [*runs]
        for number, element in enumerate(elements):
            if number in runs:
                begin, end = runs[number]
                spans.append(
                    ElementPlace(self._words[begin].start, self._words[end - 1].end, number, (begin, end))
                )
            else:
                place = 0 if span is None else span.start
                at, before, after = self._point(element, source, words, place, links, occupied)
                index = bisect.bisect(numbers, number)
                neighbours = (
                    (elements[other], runs[other]) if other is not None else None
                    for other in (numbers[index - 1] if index else None, *numbers[index : index + 1], None)
                )
                at = self._beside_punctuation(element, at, next(neighbours), next(neighbours))
                spans.append(ElementPlace(at, at, number, (0, 0), before, after))
        return sorted(spans)

    def _run(
        self,
        element: Element,
        source: tuple[int, int],
        words: tuple[int, int],
        links: Sequence[tuple[float, int]],
        occupied: Sequence[tuple[int, int]],
    ) -> tuple[int, int] | None:
        """Return the words of the translation for an element, begin and end; None if there are none.

        They are the sequence with the most words that translate words in the element, less the other words in it, and
        do not overlap the `occupied` sequences of other elements.
        """
        start, stop = self._around_words(element.start, element.end)
        inside = self._number_of_words(start, stop)
        if not occupied and inside and inside == self._number_of_words(*source):
            begin, end = words
            if self._has_text(source[0], element.start):
                begin = next((i for i in range(begin, end) if self._lexical[i]), begin)
            if self._has_text(element.end, source[1]):
                end = next((i + 1 for i in range(end - 1, begin - 1, -1) if self._lexical[i]), end)
            return self._with_punctuation(element, (begin, end), words, occupied) if begin < end else None
        low, high = (bisect.bisect_left(links, (place, -1)) for place in (start, stop))
        linked = sorted(index for _, index in links[low:high])
        if inside:
            linked = [index for index in linked if self._lexical[index]]
        best: tuple[int, int, int] | None = None  # the number of words, begin, end
        begin = score = last = 0
        for index in linked:
            after = bisect.bisect(occupied, (index, len(self._words)))
            if after and occupied[after - 1][1] > index:
                score = 0
                continue
            others = self._counts[index] - self._counts[last]
            if score <= others or (after and occupied[after - 1][0] >= last):
                begin, score = index, 0
            else:
                score -= others
            score, last = score + 1, index + 1
            if best is None or score > best[0]:
                best = (score, begin, last)
        if best is None:
            return None
        return self._with_punctuation(element, best[1:], words, occupied)

    def _with_punctuation(
        self,
        element: Element,
        run: tuple[int, int],
        words: tuple[int, int],
        occupied: Sequence[tuple[int, int]],
    ) -> tuple[int, int]:
        """Extend a sequence to the punctuation around it if its element begins or ends with punctuation."""
        begin, end = run
        text = self._source[element.start : element.end].strip()
        index = bisect.bisect(occupied, run)
        lowest = max(words[0], occupied[index - 1][1] if index else 0)
        highest = min(words[1], occupied[index][0] if index < len(occupied) else len(self._words))
        if text and not text[0].isalnum():
            while begin > lowest and self._is_punctuation_in(element, begin - 1):
                begin -= 1
        if text and not text[-1].isalnum():
            while end < highest and self._is_punctuation_in(element, end):
                end += 1
        return begin, end

    def _is_punctuation_in(self, element: Element, index: int) -> bool:
        """Return whether a word of the translation is punctuation that may translate some in an element."""
        place = self._words[index].source
        return not self._lexical[index] and (place is None or element.start <= sum(place) / 2 <= element.end)

    def _point(
        self,
        element: Element,
        source: tuple[int, int],
        words: tuple[int, int],
        place: int,
        links: Sequence[tuple[float, int]],
        occupied: Sequence[tuple[int, int]],
    ) -> tuple[int, str, str]:
        """Return the place of an element without words, and the spaces before and after it.

        It is beside the word that translates the word beside it.
        """
        space = " " if element.spaced else ""
        begin, end = words
        if begin == end:
            return place, space if place else "", space if not place else ""
        if not self._number_of_words(source[0], element.start):
            return self._words[begin].start, "", space
        if not self._number_of_words(element.end, source[1]):
            if self._has_text(element.end, source[1]):
                end = next((i + 1 for i in range(end - 1, begin - 1, -1) if self._lexical[i]), end)
            return self._outside(end - 1, True, occupied), space, ""
        following = bisect.bisect_left(self._source_starts, element.start)
        last = self._source_words[following - 1] if following else None
        next_ = self._source_words[following] if following < len(self._source_words) else None
        candidates = [(last, True), (next_, False)]
        is_glued = next_ is not None and next_.start == element.start and not element.spaced
        if is_glued and (last is None or last.end < element.start):
            candidates.reverse()
        for neighbour, is_before in candidates:
            if neighbour is None or not source[0] <= neighbour.start < source[1]:
                continue
            low, high = (
                bisect.bisect_left(links, (at, -1)) for at in (neighbour.start, neighbour.end + 1e-3)
            )
            indices = [index for _, index in links[low:high]]
            if indices:
                index = max(indices) if is_before else min(indices)
                at = self._outside(index, is_before, occupied)
                return (at, space, "") if is_before else (at, "", space)
        low = bisect.bisect_left(links, (element.start, -1))
        index = links[low - 1][1] if low else (links[0][1] if links else begin)
        return self._outside(index, True, occupied), space, ""

    def _beside_punctuation(
        self,
        element: Element,
        at: int,
        before: tuple[Element, tuple[int, int]] | None,
        after: tuple[Element, tuple[int, int]] | None,
    ) -> int:
        """Return the place of an element without words, in the order of the source with punctuation beside it.

        Args:
            element: the element.
            at: its place by the words beside it.
            before: the last element before it that has words in the translation, and these words, begin and end.
            after: the next one.
        """
        if before is not None and not self._number_of_words(before[0].start, element.start):
            end = self._words[before[1][1] - 1].end
            at = max(at, end) if not self._has_words(at, end) else at
        if after is not None and not self._number_of_words(element.end, after[0].end):
            start = self._words[after[1][0]].start
            at = min(at, start) if not self._has_words(start, at) else at
        return at

    def _outside(self, index: int, is_after: bool, occupied: Sequence[tuple[int, int]]) -> int:
        """Return the place after or before a word, or after the element that it is within."""
        after = bisect.bisect(occupied, (index, len(self._words)))
        if after and occupied[after - 1][1] > index:
            begin, end = occupied[after - 1]
            if not (is_after and index == end - 1) and not (not is_after and index == begin):
                return self._words[end - 1].end
        word = self._words[index]
        return word.end if is_after else word.start

    def _around_words(self, start: int, end: int) -> tuple[int, int]:
        """Return a part of the source with all of the words that it begins and ends in."""
        first, last = (bisect.bisect_right(self._source_starts, place) - 1 for place in (start, end - 1))
        if first >= 0 and self._source_words[first].end > start:
            start = self._source_words[first].start
        if last >= 0:
            end = max(end, self._source_words[last].end)
        return start, end

    def _number_of_words(self, start: int, end: int) -> int:
        """Return the number of words with letters or digits that start in a part of the source."""
        low, high = (bisect.bisect_left(self._source_starts, place) for place in (start, end))
        return self._source_counts[high] - self._source_counts[low]

    def _has_words(self, start: int, end: int) -> bool:
        """Return whether a word with letters or digits is in a part of the translation."""
        low, high = (bisect.bisect_left(self._starts, place) for place in (start, end))
        return start < end and self._lexical_counts[high] > self._lexical_counts[low]

    def _has_text(self, start: int, end: int) -> bool:
        return bool(self._source[start:end].strip())
