"""Prefixes and length limits of a pipeline for each text."""

import numpy as np
import pytest

from keras_transformer import generation, text
from keras_transformer.generation import Beam, Sample
from keras_transformer.models import GPT
from keras_transformer.pipelines import TextGeneration, TextToText

TEXTS = ["la casa azul", "uno", "¿dónde está el perro?", "", "uno dos"]
PREFIXES = ["the house", "", "one two three", "one", "the"]
LIMITS = [3, 10, 1, 4, 6]


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["greedy", Beam(3, num_return=2), Sample(seed=3)], ids=str)
def test_prefixes_and_limits_apply_per_row(pipeline, sampler):
    pipeline = pipeline.with_settings(sampler)
    rows = pipeline.answers(TEXTS, 2, prefixes=PREFIXES, max_new_tokens=LIMITS)
    out = pipeline.generate(TEXTS, 2, prefixes=PREFIXES, max_new_tokens=LIMITS)
    assert out.ids.shape[2] == out.token_scores.shape[2] == max(LIMITS)
    assert (out.lengths <= np.array(LIMITS)[:, None]).all()
    prefix_ids = pipeline.tokenizer.encode(PREFIXES).numpy()
    together = generation.generate(
        pipeline.model,
        pipeline.encode(TEXTS),
        pipeline.sampler,
        max_new_tokens=LIMITS,
        prefix_ids=prefix_ids,
    )
    for row, answers in enumerate(rows):
        assert answers
        for n, answer in enumerate(answers):
            assert answer.ids == together.ids[row, n, : together.lengths[row, n]].tolist()
            assert answer.score == pytest.approx(together.scores[row, n], abs=1e-3)
            whole = pipeline.tokenizer.detokenize([[*prefix_ids[row], *answer.ids]])
            assert answer.text == whole.numpy()[0].decode()
            assert answer.text.startswith(PREFIXES[row])
    texts = pipeline(TEXTS, 2, prefixes=PREFIXES, max_new_tokens=LIMITS)
    assert texts == [answers[0].text for answers in rows]


@pytest.mark.slow
def test_a_stream_respects_its_prefix_and_limit(pipeline):
    expected = pipeline(TEXTS, prefixes=PREFIXES, max_new_tokens=LIMITS)
    for row, answer in enumerate(expected):
        assert "".join(pipeline.stream(TEXTS[row], PREFIXES[row], max_new_tokens=LIMITS[row])) == answer


def test_no_texts_give_empty_outputs(pipeline):
    assert pipeline([], prefixes=[], max_new_tokens=[]) == []
    assert pipeline.answers([], max_new_tokens=3) == []


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"prefixes": ["a"]}, "`prefixes` must have one item for each of 2 texts. Received: 1"),
        ({"prefixes": "a"}, "`prefixes` must be a list of strings. Received: prefixes='a'"),
        ({"prefixes": ["a", None]}, r"`prefixes` must be strings. Received: prefixes\[1\]=None"),
        (
            {"max_new_tokens": [3]},
            "`max_new_tokens` must be one number, or one for each of 2 texts. Received: 1",
        ),
        (
            {"max_new_tokens": [3, 11]},
            r"`max_new_tokens` must be in \[1, 10\]. Received: 11 in max_new_tokens\[1\]",
        ),
        ({"max_new_tokens": 0}, r"`max_new_tokens` must be in \[1, 10\]. Received: 0"),
        ({"max_new_tokens": 2.5}, "`max_new_tokens` must be an integer, or one for each text"),
        (
            {"max_new_tokens": [2, True]},
            r"`max_new_tokens` must be an integer, or one for each text. Received: max_new_tokens=\[2, True\]",
        ),
        ({"max_new_tokens": "23"}, "`max_new_tokens` must be an integer, or one for each text"),
        ({"batch_size": 1.5}, "`batch_size` must be a positive integer. Received: batch_size=1.5"),
        ({"batch_size": "a"}, "`batch_size` must be a positive integer. Received: batch_size='a'"),
        ({"texts": None}, "`texts` must be a list of strings. Received: texts=None"),
    ],
    ids=str,
)
def test_invalid_arguments_are_rejected(pipeline, options, error):
    for ask in (pipeline, pipeline.answers, pipeline.generate):
        with pytest.raises((TypeError, ValueError), match=error):
            ask(**{"texts": ["uno", "dos"], **options})


def test_special_tokens_in_a_prefix_are_rejected(random_transformer):
    tokenizer = text.ByteTokenizer(special_tokens_in_text=True)
    model = random_transformer(
        0,
        vocabulary_size=tokenizer.vocabulary_size,
        **{name: getattr(tokenizer, name) for name in ("pad_id", "start_id", "end_id")},
    )
    with pytest.raises(ValueError, match=r"not have start or end tokens. Received: one in prefixes\[1\]"):
        TextToText(model, tokenizer)(["a", "b"], prefixes=["c", "d</s>"])


@pytest.mark.slow
def test_decoder_only_models_reject_prefixes():
    tokenizer = text.ByteTokenizer()
    model = GPT(tokenizer.vocabulary_size, 1, 2, 8, pad_id=tokenizer.pad_id, end_id=tokenizer.end_id)
    writer = TextGeneration(model, tokenizer, max_new_tokens=6)
    with pytest.raises(ValueError, match="`prefixes` must be None"):
        writer(["a"], prefixes=["b"])
    with pytest.raises(ValueError, match="`prefixes` must be None"):
        writer.stream("a", "b")
    out = writer.generate(["abc", "a"], max_new_tokens=[2, 5])
    assert out.ids.shape == (2, 1, 5)
    assert (out.lengths[:, 0] <= [2, 5]).all()
