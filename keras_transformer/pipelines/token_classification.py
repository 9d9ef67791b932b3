"""Classification of the words of a text."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.pipelines import class_labels, texts


class TaggedWord(NamedTuple):
    """A word and its class.

    Attributes:
        word: the word.
        label: its most probable label.
        probability: the probability of the label.
        start: the index of its first character in the text.
        end: the index after its last character.
    """

    word: str
    label: Any
    probability: float
    start: int
    end: int


class TokenClassification(texts.TextPipeline):
    """A pipeline of a token classifier, its tokenizer and the names of its classes.

    Words are delimited by white space; a word's class is that of its first token.

    Args:
        model: such as `models.TokenClassifier`.
        tokenizer: with the model's vocabulary.
        labels: a name for each class, by default its index.
        long_texts: "refuse" texts that are too long, or split them into windows and classify each token in the window
            in which it is farthest from a margin ("window").

    Raises:
        ValueError: if model, tokenizer and labels do not match.

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
        """Classify the words of each text.

        Args:
            given: a list of texts, or one string.
            batch_size: the number of rows in a batch.

        Returns:
            For each text a list of `TaggedWord`; for one string only its list. Words without tokens are omitted.

        Raises:
            ValueError: if a text is too long.
        """
        listed, one = texts.as_list(given)
        rows, windows, of_text = [], [], []
        for i, text in enumerate(listed):
            its_words = texts.split_words(text)
            ids, word_of = texts.tokenize_words(its_words, self.tokenizer)
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
        """Return the constructor's arguments except model and tokenizer."""
        return {**super().settings(), "labels": self.labels}

    def _tagged(
        self, its_words: list[texts.Word], word_of: list[int], probabilities: np.ndarray
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
