"""Metrics of classifiers, rerankers, extractive question answering and speech recognition."""

import collections
import itertools
import re
import string
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from keras_transformer_options.arguments import ArgumentError

_SHOWN = 10


def label_order(label: Any) -> tuple[float, str]:
    """Return the key that sorts labels: numbers by value, then other labels by name."""
    text = str(label)
    return (float(text), text) if re.fullmatch(r"-?\d+(\.\d+)?", text) else (float("inf"), text)


def class_ids(labels: Sequence[Any], names: Sequence[Any]) -> np.ndarray:
    """Return the index of each label in `names`, or raise a ValueError for an unknown label."""
    ids = {name: number for number, name in enumerate(names)}
    for index, label in enumerate(labels):
        if label not in ids:
            raise ArgumentError(
                "{data} must have every label of the validation and test examples. "
                f"Received: {{label!r}} in example {index}, which is not among {{known!s}}",
                label=label,
                known=list(names)[:20],
            )
    return np.array([ids[label] for label in labels])


def keep_every_label(
    train: Sequence[Any], held_out: Sequence[Any], labels_of: Callable[[Any], Iterable[Any]]
) -> tuple[list[Any], list[Any]]:
    """Move held-out examples with labels that no training example has to the training examples.

    Args:
        train: the examples to train on.
        held_out: the examples that are held out.
        labels_of: a function from an example to its labels.

    Returns:
        `(train, held_out)`.
    """
    train, kept = list(train), []
    known = {label for example in train for label in labels_of(example)}
    for example in held_out:
        if known.issuperset(labels_of(example)):
            kept.append(example)
        else:
            train.append(example)
            known.update(labels_of(example))
    return train, kept


def ranking(queries: Sequence[str], relevant: Sequence[bool], scores: Sequence[float]) -> dict[str, Any]:
    """Return the mean reciprocal rank of the first relevant text of each query.

    Queries whose texts are all relevant, or all irrelevant, are excluded; without others, the metric is absent.

    Args:
        queries: the query of each text.
        relevant: whether each text is relevant to its query.
        scores: the score of each text. Of texts with the same score, irrelevant ones come first.
    """
    texts = collections.defaultdict(list)
    for query, is_relevant, score in zip(queries, relevant, scores, strict=True):
        texts[query].append((-score, is_relevant))
    ranks = [
        1 + [is_relevant for _, is_relevant in sorted(ranked)].index(True)
        for ranked in texts.values()
        if len({is_relevant for _, is_relevant in ranked}) == 2
    ]
    return {"mean_reciprocal_rank": float(np.mean(1 / np.array(ranks)))} if ranks else {}


def classification(
    references: Sequence[Sequence[Any]], answers: Sequence[Sequence[Any]], labels: Sequence[Any] = ()
) -> dict[str, Any]:
    """Return the accuracy, the F1 of each class and their mean, and the number of examples of each class.

    An answer is accurate if it has exactly the labels of its reference. The F1 of a class is 2 TP / (2 TP + FP + FN).
    It is None for classes of `labels` that occur in neither list, which the mean excludes.

    Args:
        references: the label of each example, or its labels.
        answers: the predicted labels.
        labels: the classes.
    """
    pairs = [(set(reference), set(answer)) for reference, answer in zip(references, answers, strict=True)]
    correct, expected, answered = (
        collections.Counter(itertools.chain.from_iterable(each))
        for each in (
            (reference & answer for reference, answer in pairs),
            (reference for reference, _ in pairs),
            (answer for _, answer in pairs),
        )
    )
    counts = expected + answered
    classes = sorted({*counts, *labels}, key=label_order)
    f1 = {str(label): 2 * correct[label] / counts[label] if counts[label] else None for label in classes}
    known = [value for value in f1.values() if value is not None]
    return {
        "accuracy": sum(reference == answer for reference, answer in pairs) / len(pairs),
        "macro_f1": sum(known) / max(len(known), 1),
        "f1": f1,
        "support": {name: expected[label] for name, label in zip(f1, classes, strict=True)},
        "num_examples": len(references),
    }


def entities(references: Sequence[Sequence[str]], answers: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return precision, recall and F1 of entities in the schemes IOB, IOB2 and IOE, as `conlleval` computes them.

    Args:
        references: the tags of the words of each sentence.
        answers: the predicted tags.

    Raises:
        ImportError: if seqeval is not installed.
    """
    try:
        from seqeval.metrics import f1_score, precision_score, recall_score
    except ModuleNotFoundError as error:
        raise ImportError(
            "Entity F1 needs seqeval, of the extra [evaluation]: pip install seqeval"
        ) from error
    metrics = {"precision": precision_score, "recall": recall_score, "f1": f1_score}
    return {
        f"entity_{name}": float(metric(list(references), list(answers), zero_division=0))
        for name, metric in metrics.items()
    }


def spans(references: Sequence[Sequence[str]], answers: Sequence[str]) -> dict[str, float]:
    """Return SQuAD's exact match and F1 of words: the best over the references of each question, then the mean.

    A question without references has no answer, and "" is right. If there are such questions, the means are also
    returned over them and over the others: "no_answer_f1", "has_answer_f1", and so on.

    References:
        Rajpurkar et al., "SQuAD" (2016), section 6.1; "Know What You Don't Know: Unanswerable Questions for SQuAD"
        (2018), section 5.
    """
    exact, overlap = _span_scores(references, answers)
    has_answer = np.array([bool(accepted) for accepted in references])
    groups = {"": slice(None)}
    if not has_answer.all():
        groups |= {"has_answer_": has_answer, "no_answer_": ~has_answer}
    return {
        prefix + name: float(values[group].mean())
        for prefix, group in groups.items()
        for name, values in (("exact_match", exact), ("f1", overlap))
        if len(values[group])
    }


def thresholds(
    references: Sequence[Sequence[str]], answers: Sequence[str], no_answer_scores: Sequence[float]
) -> dict[str, float]:
    """Return the best exact match and F1 of words that a threshold of no answer gives, and the threshold of each.

    Args:
        references: the accepted answers to each question; none for a question without an answer.
        answers: the best answer to each, not "".
        no_answer_scores: for each question, the score above which the threshold makes its answer "".

    References:
        The evaluation script of SQuAD 2.0, `find_best_thresh`.
    """
    has_answer = np.array([bool(accepted) for accepted in references])
    ranked = np.argsort(no_answer_scores, kind="stable")
    found = {}
    for name, values in zip(("exact_match", "f1"), _span_scores(references, answers), strict=True):
        # From no answer to every question, each answer gains its score, or loses a question without an answer.
        gains = np.where(has_answer, values, -1.0)[ranked]
        totals = (~has_answer).sum() + np.cumsum([0.0, *gains])
        best = int(totals.argmax())
        threshold = no_answer_scores[ranked[best - 1]] if best else min(no_answer_scores) - 1
        found |= {f"best_{name}": totals[best] / len(answers), f"best_{name}_threshold": float(threshold)}
    return found


def _span_scores(
    references: Sequence[Sequence[str]], answers: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the exact match and the F1 of words of each answer."""
    exact, overlap = [], []
    for accepted, answer in zip(references, answers, strict=True):
        words, texts = normalized(answer), [normalized(text) for text in accepted] or [[]]
        exact.append(float(words in texts))
        overlap.append(max(_word_f1(text, words) for text in texts))
    return np.array(exact), np.array(overlap)


def normalized(text: str) -> list[str]:
    """Return the words of an answer in lower case, without punctuation and English articles."""
    text = "".join(character for character in text.lower() if character not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def word_error_rate(references: Sequence[str], answers: Sequence[str]) -> float:
    """Return the number of words that are replaced, inserted or deleted, at least, per word of the references."""
    errors = sum(
        _edits(reference.split(), answer.split())
        for reference, answer in zip(references, answers, strict=True)
    )
    return errors / sum(len(reference.split()) for reference in references)


def wrong_first(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a few examples for a report, up to half of them with wrong answers, which come first."""
    wrong = [row for row in rows if row["reference"] != row["answer"]][: _SHOWN // 2]
    correct = [row for row in rows if row["reference"] == row["answer"]][: _SHOWN - len(wrong)]
    return wrong + correct


def _edits(reference: Sequence[str], answer: Sequence[str]) -> int:
    """Return the Levenshtein distance of two sequences."""
    row = list(range(len(answer) + 1))
    for i, expected in enumerate(reference):
        before, row = row, [i + 1]
        for j, found in enumerate(answer):
            row.append(min(before[j + 1] + 1, row[j] + 1, before[j] + (expected != found)))
    return row[-1]


def _word_f1(reference: list[str], answer: list[str]) -> float:
    if not reference or not answer:
        return float(reference == answer)
    common = (collections.Counter(reference) & collections.Counter(answer)).total()
    return 2 * common / (len(reference) + len(answer))
