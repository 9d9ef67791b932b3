import pytest

from keras_transformer import pipelines

REFERENCES = [
    ("uno", "one"),
    ("dos", "two"),
    ("tres gatos negros aquí", "three black cats here"),
    ("dos", "a pair"),
]


class Answering:
    """A pipeline with fixed outputs, which records its inputs."""

    def __init__(self, **answers):
        self.answers = answers
        self.asked = []

    def __call__(self, texts):
        assert isinstance(texts, list)
        self.asked += texts
        return [self.answers[text.split()[0]] for text in texts]


def test_correct_answers_have_the_maximum_score():
    scores = pipelines.evaluate(Answering(uno="one", dos="two", tres="three black cats here"), REFERENCES)
    assert scores["exact_match"] == 1
    assert scores["bleu"] == pytest.approx(100)
    assert scores["chrf"] == pytest.approx(100)
    assert scores["sentences"] == 3


def test_any_of_several_references_counts_as_a_match():
    scores = pipelines.evaluate(Answering(uno="one", dos="a pair", tres="three black cats here"), REFERENCES)
    assert scores["exact_match"] == 1
    assert scores["bleu"] == pytest.approx(100)


def test_each_source_is_answered_once_and_in_order():
    pipeline = Answering(uno="one", dos="two", tres="")
    pipelines.evaluate(pipeline, REFERENCES)
    assert pipeline.asked == ["uno", "dos", "tres gatos negros aquí"]


def test_wrong_answers_have_score_zero():
    scores = pipelines.evaluate(Answering(uno="xx", dos="yy", tres="zz qq"), REFERENCES)
    assert scores["exact_match"] == 0
    assert scores["bleu"] < 1
    assert scores["chrf"] < 1


def test_exact_match_is_the_fraction_of_equal_answers():
    scores = pipelines.evaluate(Answering(uno="One", dos="two", tres="three black cats here "), REFERENCES)
    assert scores["exact_match"] == pytest.approx(1 / 3)


def test_references_are_not_normalized():
    scores = pipelines.evaluate(
        Answering(uno="café", dos="cafe\u0301"), [("uno", "cafe\u0301"), ("dos", "cafe\u0301")]
    )
    assert scores["exact_match"] == 0.5


def test_bleu_and_chrf_equal_sacrebleu():
    from sacrebleu import corpus_bleu, corpus_chrf

    pairs = [("a", "the black cat sat on the mat"), ("b", "it rains today in the city")]
    answers = ["the black cat sat on a mat", "it rained today in the city"]
    scores = pipelines.evaluate(Answering(a=answers[0], b=answers[1]), pairs)
    references = [[target for _, target in pairs]]
    assert scores["bleu"] == pytest.approx(corpus_bleu(answers, references).score)
    assert scores["chrf"] == pytest.approx(corpus_chrf(answers, references).score)
    assert 20 < scores["bleu"] < scores["chrf"] < 95


def test_signatures_equal_sacrebleu():
    scores = pipelines.evaluate(Answering(uno="one", dos="two", tres=""), iter(REFERENCES))
    assert "tok:13a" in scores["signatures"]["bleu"]
    assert "version:" in scores["signatures"]["bleu"]
    assert "nc:6" in scores["signatures"]["chrf"]
    assert set(scores) == {"exact_match", "bleu", "chrf", "signatures", "sentences"}


ROUGE = ("rouge1", "rouge2", "rougeL")


def test_rouge_is_the_f1_of_ngrams_and_of_common_subsequences():
    pairs = [("a", "the cats sat on the mat"), ("b", "it rains")]
    answers = Answering(a="The cat, the mat!", b="")
    scores = pipelines.evaluate(answers, pairs, metrics=ROUGE)
    # Of stems: 4 of 4 and 6 unigrams are equal, 2 of 3 and 5 bigrams, and a subsequence of 4.
    expected = {"rouge1": 2 * 4 / (4 + 6), "rouge2": 2 * 2 / (3 + 5), "rougeL": 2 * 4 / (4 + 6)}
    assert {name: scores[name] for name in ROUGE} == pytest.approx(
        {name: 100 * value / 2 for name, value in expected.items()}
    )
    assert set(scores) == {"exact_match", *ROUGE, "signatures", "sentences"}
    assert all(scores["signatures"][name].startswith(f"{name}|") for name in ROUGE)


def test_rouge_takes_the_best_reference():
    scores = pipelines.evaluate(
        Answering(uno="one", dos="a pair", tres="three black cats here"), REFERENCES, metrics=["rouge1"]
    )
    assert scores["rouge1"] == pytest.approx(100)
    assert set(scores) == {"exact_match", "rouge1", "signatures", "sentences"}


def test_intervals_of_rouge_have_the_mean_and_grow_with_differences():
    answers = Answering(**{f"t{n}": "a b c d" if n % 2 else "x" for n in range(20)})
    pairs = [(f"t{n}", "a b c d") for n in range(20)]
    scores = pipelines.evaluate(answers, pairs, metrics=ROUGE, num_bootstrap=200)
    for name in ROUGE:
        low, high = scores["intervals"][name]
        assert 20 < low < scores[name] < high < 80
    same = Answering(**{f"t{n}": "a b c d" for n in range(20)})
    assert pipelines.evaluate(same, pairs, metrics=["rougeL"], num_bootstrap=9)["intervals"] == {
        "rougeL": (100, 100)
    }


@pytest.mark.parametrize("metrics", [["bleu", "rouge"], [], "bleu"])
def test_unknown_metrics_are_rejected(metrics):
    with pytest.raises(ValueError, match="`metrics` must be"):
        pipelines.evaluate(Answering(), REFERENCES, metrics=metrics)


@pytest.mark.parametrize(
    ("answers", "pairs", "message"),
    [
        (Answering(), [], "`pairs` must not be empty"),
        (lambda texts: ["one"], REFERENCES, r"zip\(\) argument 2"),
    ],
    ids=["no pairs", "missing answers"],
)
def test_invalid_pairs_and_answers_are_rejected(answers, pairs, message):
    with pytest.raises(ValueError, match=message):
        pipelines.evaluate(answers, pairs)


@pytest.mark.parametrize(
    ("module", "package", "metric"),
    [("sacrebleu.metrics", "sacrebleu", "chrf"), ("rouge_score.rouge_scorer", "rouge-score", "rouge2")],
)
def test_the_error_without_a_package_names_it_and_the_extra(monkeypatch, module, package, metric):
    import sys

    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        ImportError, match=rf"needs {package}, of the extra \[evaluation\]: pip install {package}"
    ):
        pipelines.evaluate(Answering(), REFERENCES, metrics=[metric])


@pytest.mark.slow
def test_a_real_pipeline_is_scored(pipeline, sentence_pairs):
    sources = [source for source, _ in sentence_pairs]
    own = list(zip(sources, pipeline(sources), strict=True))
    assert pipelines.evaluate(pipeline, own)["exact_match"] == 1
    assert pipelines.evaluate(pipeline, sentence_pairs)["exact_match"] == 0
