"""Evaluation of pipelines with BLEU, chrF and exact match."""

import json
from collections.abc import Iterable
from typing import Any


def evaluate(pipeline: Any, pairs: Iterable[tuple[str, str]], *, num_bootstrap: int = 0) -> dict[str, Any]:
    """Evaluate a pipeline's outputs against reference texts by exact match, sacreBLEU and chrF.

    A source that occurs in several pairs is evaluated once, with all of its targets as references.

    Args:
        pipeline: a function from a list of texts to a list of texts.
        pairs: (source, target) texts.
        num_bootstrap: the number of bootstrap samples of the sentences, for "intervals"; 0 for none.

    Returns:
        "exact_match", the fraction of outputs that equal a reference, in [0, 1]; "bleu" and "chrf", in [0, 100];
        "signatures", sacreBLEU's signatures of both; "sentences", the number of sources; with `num_bootstrap`,
        "intervals", the 95 % confidence interval (low, high) of "bleu" and "chrf".

    Raises:
        ImportError: if sacrebleu is not installed.
        ValueError: if there are no pairs, or one is not two strings.

    References:
        Post, "A Call for Clarity in Reporting BLEU Scores" (2018); Popović, "chrF" (2015).
    """
    bleu, chrf = map(_with_float_scores, scorers())
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
    max_references = max(map(len, references.values()))
    # sacreBLEU expects streams of the n-th references of all sentences, with None for missing ones.
    streams = [
        [texts[n] if n < len(texts) else None for texts in references.values()] for n in range(max_references)
    ]
    scores = {
        name: scorer.corpus_score(answers, streams, n_bootstrap=max(1, num_bootstrap))
        for name, scorer in (("bleu", bleu), ("chrf", chrf))
    }
    signatures = {"bleu": str(bleu.get_signature()), "chrf": str(chrf.get_signature())}
    matches = sum(answer in texts for answer, texts in zip(answers, references.values(), strict=True))
    return {
        "exact_match": matches / len(answers),
        **{name: score.score for name, score in scores.items()},
        "signatures": signatures,
        "sentences": len(answers),
        **(
            {"intervals": {name: _interval(score, signatures[name]) for name, score in scores.items()}}
            if num_bootstrap
            else {}
        ),
    }


def _with_float_scores(scorer: Any) -> Any:
    """Make sacreBLEU's bootstrap scores floats: its mean of floats and NumPy's float32 raises a TypeError."""
    compute = scorer._compute_score_from_stats

    def computed(stats: Any) -> Any:
        score = compute(stats)
        score.score = float(score.score)
        return score

    scorer._compute_score_from_stats = computed
    return scorer


def _interval(score: Any, signature: str) -> tuple[float, float]:
    """Return the bootstrap interval of a score, which sacreBLEU describes by its mean and half width."""
    result = json.loads(score.format(width=4, signature=signature, is_json=True))
    mean, half = result.get("confidence_mean", 0.0), result.get("confidence_var", 0.0)
    return mean - half, mean + half


def scorers() -> tuple[Any, Any]:
    """Return sacreBLEU's BLEU and chrF metrics.

    Raises:
        ImportError: if sacrebleu is not installed; call this before a long training to fail early.
    """
    try:
        from sacrebleu.metrics import BLEU, CHRF
    except ImportError as error:
        raise ImportError(
            "`evaluate` needs sacrebleu: pip install 'keras-transformer-kit[evaluation]'"
        ) from error
    return BLEU(), CHRF()
