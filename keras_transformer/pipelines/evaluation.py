"""How good a pipeline's answers are."""

from collections.abc import Iterable
from typing import Any


def evaluate(pipeline: Any, pairs: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Compare a pipeline's answers with reference texts, by exact match, sacreBLEU and chrF.

    A source that stands in several pairs is answered once, and every one of its targets is a reference.

    Args:
        pipeline: from a list of texts to a list of texts.
        pairs: (source, target) texts.

    Returns:
        "exact_match", the share of answers that equal a reference, in [0, 1]; "bleu" and "chrf", in [0, 100];
        "signatures", which say how those two were computed; "sentences", the number of sources.

    Raises:
        ImportError: where sacrebleu is not installed.
        ValueError: where there are no pairs.

    References:
        Post, "A Call for Clarity in Reporting BLEU Scores" (2018); Popović, "chrF" (2015).
    """
    bleu, chrf = scorers()
    references: dict[str, list[str]] = {}
    for source, target in pairs:
        references.setdefault(source, []).append(target)
    if not references:
        raise ValueError("`pairs` must not be empty. Received: pairs=[]")
    answers = pipeline(list(references))
    most = max(map(len, references.values()))
    # sacreBLEU takes the n-th reference of every sentence together, and None where there is none.
    streams = [[texts[n] if n < len(texts) else None for texts in references.values()] for n in range(most)]
    scores = {"bleu": bleu.corpus_score(answers, streams), "chrf": chrf.corpus_score(answers, streams)}
    right = sum(answer in texts for answer, texts in zip(answers, references.values(), strict=True))
    return {
        "exact_match": right / len(answers),
        **{name: score.score for name, score in scores.items()},
        "signatures": {"bleu": str(bleu.get_signature()), "chrf": str(chrf.get_signature())},
        "sentences": len(answers),
    }


def scorers() -> tuple[Any, Any]:
    """SacreBLEU's BLEU and chrF.

    Raises:
        ImportError: where sacrebleu is not installed; asked before a long training, not after it.
    """
    try:
        from sacrebleu.metrics import BLEU, CHRF
    except ImportError as error:
        raise ImportError(
            "`evaluate` needs sacrebleu: pip install 'keras-transformer-kit[evaluation]'"
        ) from error
    return BLEU(), CHRF()
