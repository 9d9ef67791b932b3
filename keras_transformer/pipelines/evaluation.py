"""Evaluation of pipelines with BLEU, chrF, ROUGE and exact match."""

import abc
import importlib.metadata
import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from keras_transformer_options.arguments import check, check_one_of

Interval = tuple[float, float]
References = Sequence[Sequence[str]]


def evaluate(
    pipeline: Any,
    pairs: Iterable[tuple[str, str]],
    *,
    metrics: Sequence[str] = ("bleu", "chrf"),
    num_bootstrap: int = 0,
) -> dict[str, Any]:
    """Evaluate a pipeline's outputs against reference texts by exact match and scores such as BLEU or ROUGE.

    A source that occurs in several pairs is evaluated once, with all of its targets as references.

    Args:
        pipeline: a function from a list of texts to a list of texts.
        pairs: (source, target) texts.
        metrics: the scores: "bleu" and "chrf" of sacreBLEU for translations; "rouge1", "rouge2" and "rougeL" of
            `rouge-score` for summaries, the F1 of unigrams, of bigrams and of the longest common subsequence, with the
            best reference of each output. Like the published figures, ROUGE compares lower-case stems of English, and
            ignores characters other than a to z and digits.
        num_bootstrap: the number of bootstrap samples of the sentences, for "intervals"; 0 for none.

    Returns:
        "exact_match", the fraction of outputs that equal a reference, in [0, 1]; each of the `metrics`, in [0, 100];
        "signatures", their names, settings and versions; "sentences", the number of sources; with `num_bootstrap`,
        "intervals", the 95 % confidence interval (low, high) of each metric.

    Raises:
        ImportError: if sacrebleu or rouge-score, whichever is needed, is not installed.
        ValueError: if there are no pairs, one is not two strings, or a metric is unknown.

    References:
        Post, "A Call for Clarity in Reporting BLEU Scores" (2018); Popović, "chrF" (2015); Lin, "ROUGE: A Package for
        Automatic Evaluation of Summaries" (2004).
    """
    chosen = scorers(metrics)
    references: dict[str, list[str]] = {}
    for row, pair in enumerate(pairs):
        if not isinstance(pair, tuple | list) or [type(text) for text in pair] != [str, str]:
            raise ValueError(
                f"`pairs` must be pairs of strings, (source, target). Received: pairs[{row}]={pair!r}"
            )
        references.setdefault(pair[0], []).append(pair[1])
    if not references:
        raise ValueError("`pairs` must not be empty. Received: pairs=[]")
    answers = pipeline(list(references))
    matches = sum(answer in texts for answer, texts in zip(answers, references.values(), strict=True))
    scores = {
        name: scorer.score(answers, [*references.values()], num_bootstrap) for name, scorer in chosen.items()
    }
    return {
        "exact_match": matches / len(answers),
        **{name: score for name, (score, _) in scores.items()},
        "signatures": {name: scorer.signature for name, scorer in chosen.items()},
        "sentences": len(answers),
        **(
            {"intervals": {name: interval for name, (_, interval) in scores.items()}} if num_bootstrap else {}
        ),
    }


def scorers(metrics: Sequence[str] = ("bleu", "chrf")) -> dict[str, "Scorer"]:
    """Return the scorer of each of the `metrics` of `evaluate`.

    Raises:
        ImportError: if a package is not installed; call this before a long training to fail early.
        ValueError: if there is no metric, or one is unknown.
    """
    check(not isinstance(metrics, str) and len(metrics) > 0, "be a list of names", metrics=metrics)
    for metric in metrics:
        check_one_of(METRICS, metrics=metric)
    return {metric: METRICS[metric](metric) for metric in metrics}


class Scorer(abc.ABC):
    """A score of outputs against references.

    Attributes:
        signature: the name, the settings and the version of the score.
    """

    signature: str

    @abc.abstractmethod
    def score(
        self, answers: Sequence[str], references: References, num_bootstrap: int
    ) -> tuple[float, Interval | None]:
        """Return the score of answers in [0, 100], and its bootstrap interval, None without bootstrap samples."""


class SacreBLEU(Scorer):
    """BLEU or chrF of all answers together, computed by sacreBLEU.

    Args:
        metric: "bleu" or "chrf".
    """

    def __init__(self, metric: str) -> None:
        try:
            from sacrebleu.metrics import BLEU, CHRF
        except ModuleNotFoundError as error:
            raise _missing("sacrebleu") from error
        self._metric = _with_float_scores({"bleu": BLEU, "chrf": CHRF}[metric]())
        self.signature = ""

    def score(
        self, answers: Sequence[str], references: References, num_bootstrap: int
    ) -> tuple[float, Interval | None]:
        """Return the corpus score; the signature has the number of references."""
        # sacreBLEU expects streams of the n-th references of all sentences, with None for missing ones.
        streams = [
            [texts[n] if n < len(texts) else None for texts in references]
            for n in range(max(map(len, references)))
        ]
        score = self._metric.corpus_score(answers, streams, n_bootstrap=max(1, num_bootstrap))
        self.signature = str(self._metric.get_signature())
        if not num_bootstrap:
            return score.score, None
        # sacreBLEU describes the interval by its mean and half width.
        result = json.loads(score.format(width=4, signature=self.signature, is_json=True))
        mean, half = result.get("confidence_mean", 0.0), result.get("confidence_var", 0.0)
        return score.score, (mean - half, mean + half)


class Rouge(Scorer):
    """The mean of an F1 of ROUGE over all answers, computed by `rouge-score`.

    Args:
        metric: "rouge1", "rouge2" or "rougeL".
    """

    def __init__(self, metric: str) -> None:
        try:
            from rouge_score.rouge_scorer import RougeScorer
        except ModuleNotFoundError as error:
            raise _missing("rouge-score") from error
        self._name, self._scorer = metric, RougeScorer([metric], use_stemmer=True)
        self.signature = (
            f"{metric}|measure:f1|stemmer:porter|version:{importlib.metadata.version('rouge-score')}"
        )

    def score(
        self, answers: Sequence[str], references: References, num_bootstrap: int
    ) -> tuple[float, Interval | None]:
        """Return the mean over answers."""
        each = np.array(
            [
                100 * self._scorer.score_multi(texts, answer)[self._name].fmeasure
                for answer, texts in zip(answers, references, strict=True)
            ]
        )
        if not num_bootstrap:
            return float(each.mean()), None
        samples = np.random.default_rng(0).integers(0, len(each), (num_bootstrap, len(each)))
        low, high = np.quantile(each[samples].mean(axis=1), (0.025, 0.975))
        return float(each.mean()), (float(low), float(high))


METRICS: dict[str, type[Any]] = {
    **dict.fromkeys(("bleu", "chrf"), SacreBLEU),
    **dict.fromkeys(("rouge1", "rouge2", "rougeL"), Rouge),
}


def _missing(package: str) -> ImportError:
    return ImportError(f"`evaluate` needs {package}, of the extra [evaluation]: pip install {package}")


def _with_float_scores(scorer: Any) -> Any:
    """Make sacreBLEU's bootstrap scores floats: its mean of floats and NumPy's float32 raises a TypeError."""
    compute = scorer._compute_score_from_stats

    def computed(stats: Any) -> Any:
        score = compute(stats)
        score.score = float(score.score)
        return score

    scorer._compute_score_from_stats = computed
    return scorer
