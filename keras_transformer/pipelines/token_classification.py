"""The words of a text to the names of their classes."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.pipelines import class_labels, texts, words


class TaggedWord(NamedTuple):
    """A word and its class.

    Attributes:
        word: as written.
        label: its most probable class.
        probability: of that class.
        start: where in the text the word starts.
        end: where it ends, exclusive.
    """

    word: str
    label: Any
    probability: float
    start: int
    end: int


class TokenClassification(texts.OfTexts):
    """A classifier of tokens, its tokenizer and the names of its classes.

    Words are what stands between white space; a word's class is that of its first token.

    Args:
        model: such as `models.TokenClassifier`.
        tokenizer: with the model's vocabulary.
        labels: a name for each class, by default its number.
        long_texts: whether texts that are too long are refused ("refuse"), or read through windows, of which each token
            is classified in the one where it stands farthest from a margin ("window").

    Raises:
        ValueError: where model, tokenizer and labels do not belong together.

    Example:
        >>> TokenClassification(model, tokenizer, ["O", "PER"])("said Ada")
        [TaggedWord(word='said', label='O', …), TaggedWord(word='Ada', label='PER', …)]
    """

    def __init__(
        self, model: Any, tokenizer: Any, labels: Sequence[Any] | None = None, long_texts: str = "refuse"
    ) -> None:
        super().__init__(model, tokenizer, long_texts)
        self.labels = class_labels.check(labels, model.num_classes)

    def __call__(self, given: str | Iterable[str], batch_size: int = 32) -> Any:
        """The words of each text with their labels.

        Args:
            given: a list of texts, or one string.
            batch_size: rows that run together; it changes the speed alone.

        Returns:
            For each text a list of `TaggedWord`; for one string that list. A word of which the tokenizer leaves nothing
            is not among them.

        Raises:
            ValueError: where a text is too long.
        """
        listed, one = texts.as_list(given)
        rows, windows, of_text = [], [], []
        for i, text in enumerate(listed):
            its_words = words.split(text)
            ids, word_of = words.with_ids(its_words, self.tokenizer)
            of_text.append((its_words, word_of))
            for start, end in self._windows(ids, self.encoder.max_length - 2, i, "given"):
                rows.append(self._row(ids[start:end]))
                windows.append((i, start, end))
        best = [np.zeros((len(word_of), len(self.labels)), "float32") for _, word_of in of_text]
        depth = [np.full(len(word_of), -1) for _, word_of in of_text]
        for (i, start, end), logits in zip(windows, self._run(rows, batch_size), strict=True):
            places = np.arange(start, end)
            inside = np.minimum(places - start, end - 1 - places)
            deeper = inside > depth[i][start:end]
            depth[i][places[deeper]] = inside[deeper]
            best[i][places[deeper]] = class_labels.softmax(logits[1 : 1 + end - start])[deeper]
        found = [self._tagged(*its, probabilities) for its, probabilities in zip(of_text, best, strict=True)]
        return found[0] if one else found

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments besides model and tokenizer."""
        return {**super().settings(), "labels": self.labels}

    def _tagged(
        self, its_words: list[words.Word], word_of: list[int], probabilities: np.ndarray
    ) -> list[TaggedWord]:
        tagged = []
        for place, number in enumerate(word_of):
            if place and word_of[place - 1] == number:
                continue
            word, best = its_words[number], int(probabilities[place].argmax())
            tagged.append(
                TaggedWord(
                    word.text, self.labels[best], float(probabilities[place, best]), word.start, word.end
                )
            )
        return tagged
