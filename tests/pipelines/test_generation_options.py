"""The options of a row: each has the effect of a setting, for its row alone, and compiles nothing."""

import re

import numpy as np
import pytest

from keras_transformer.generation import Sample, compilation
from keras_transformer.models import GPT
from keras_transformer.pipelines import TextGeneration
from keras_transformer.text import ByteTokenizer
from tests.laws.cases import randomise
from tests.laws.pipelines import SIZES

TEXTS = ["ab", "cde", "f"]


@pytest.fixture(scope="module")
def writer():
    tokenizer = ByteTokenizer()
    model = randomise(GPT(tokenizer.vocabulary_size, **SIZES, max_length=32))
    return TextGeneration(model, tokenizer, Sample(seed=3), max_new_tokens=6)


def test_the_seed_of_a_row_replaces_the_seed_of_the_sampler(writer):
    other = writer.with_settings(Sample(seed=4))
    assert writer(TEXTS) == writer(TEXTS, seed=3)
    assert writer(TEXTS, seed=4) == other(TEXTS) != writer(TEXTS)
    assert writer(TEXTS, seed=[3, 4, 3]) == [writer(TEXTS)[0], other(TEXTS)[1], writer(TEXTS)[2]]
    assert writer.generate(TEXTS, seed=[4, 4, 4]).seed == 4
    assert writer.answers(TEXTS, seed=[1, 2, 3])[1][0].seed == 2
    assert "".join(writer.stream("ab", seed=4)) == writer("ab", seed=4)


@pytest.mark.parametrize("texts", [TEXTS, [1, 2], None])
def test_a_stream_has_one_text(writer, texts):
    with pytest.raises(TypeError, match=re.escape(f"`text` must be a string. Received: text={texts!r}")):
        writer.stream(texts)


def test_without_a_seed_each_call_draws_a_new_one_that_repeats_it(writer):
    drawing = writer.with_settings(Sample())
    out = drawing.generate(TEXTS)
    np.testing.assert_array_equal(drawing.generate(TEXTS, seed=out.seed).ids, out.ids)
    assert drawing.generate(TEXTS, seed=-1).seed != out.seed


def test_the_temperature_of_a_row_replaces_the_temperature_of_the_sampler(writer):
    cold, warm = (writer.with_settings(sampler)(TEXTS) for sampler in ("greedy", Sample(2.0, seed=3)))
    assert writer(TEXTS, temperature=1e-6) == cold
    assert writer(TEXTS, temperature=[1e-6, 2.0, 1.0]) == [cold[0], warm[1], writer(TEXTS)[2]]
    assert "".join(writer.stream("ab", temperature=2.0)) == writer("ab", temperature=2.0) == warm[0]


def test_a_row_has_the_minimum_of_its_option(writer):
    for minimums in (6, [0, 3, 6]):
        out = writer.generate(TEXTS, min_new_tokens=minimums)
        assert (out.lengths[:, 0] >= minimums).all()
    assert writer.generate(TEXTS, min_new_tokens=5, max_new_tokens=2).lengths.max() == 2


def test_options_compile_nothing(writer):
    calls = (
        {"seed": 5},
        {"seed": 6},
        {"temperature": 0.5, "seed": 5},
        {"temperature": 0.7, "seed": [5, 6, 7]},
    )
    for options in calls:
        writer(TEXTS, **options)
    known = len(compilation._CACHE[writer.model])
    for options in calls:
        writer(TEXTS[::-1], **{name: np.asarray(value) + 1 for name, value in options.items()})
    assert len(compilation._CACHE[writer.model]) == known


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": 2**32}, r"`seed` must be in \[-1, 4294967295\]. Received: 4294967296 in seed\[0\]"),
        ({"seed": 1.5}, "`seed` must be an integer, or one for each text. Received: seed=1.5"),
        ({"temperature": 0}, "`temperature` must be in"),
        (
            {"temperature": [1, 2]},
            "`temperature` must be one number, or one for each of 3 texts. Received: 2",
        ),
        ({"min_new_tokens": 7}, r"`min_new_tokens` must be in \[0, 6\]. Received: 7"),
        ({"tempperature": 1}, "The options must be among .* Received: tempperature"),
        ({"prefixes": ["a"] * 3}, "`prefixes` must be None for a decoder-only model"),
        ({"source_language": "en"}, "`source_language` must be None, as the model has no languages"),
    ],
    ids=str,
)
def test_invalid_options_name_the_option(writer, options, message):
    for call in (writer, writer.generate, writer.answers):
        with pytest.raises((TypeError, ValueError), match=message):
            call(TEXTS, **options)


@pytest.mark.parametrize("name", ["seed", "temperature"])
def test_options_of_sampling_need_a_sampler_that_draws(writer, name):
    greedy = writer.with_settings("greedy")
    with pytest.raises(ValueError, match=f"`{name}` needs the sampler `Sample`. Received: {name}=1"):
        greedy(TEXTS, **{name: 1})
