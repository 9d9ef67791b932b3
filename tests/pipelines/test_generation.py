"""Samplers, constraints, n-best outputs and streams of a pipeline, and supported models."""

import numpy as np
import pytest

from keras_transformer import generation, pipelines
from keras_transformer.generation import (
    BannedWords,
    Beam,
    Ensemble,
    ForcedWords,
    NoRepeatNGram,
    Sample,
    Speculative,
)
from keras_transformer.models import BERT, GPT
from keras_transformer.pipelines import TextGeneration, TextToText
from tests.generation.reference import traced_searches


@pytest.fixture(scope="module")
def beam(pipeline):
    return pipeline.with_settings(Beam(3, num_return=2), constraints=[NoRepeatNGram(2)])


@pytest.fixture(scope="module")
def saved(beam, tmp_path_factory):
    folder = tmp_path_factory.mktemp("settings") / "pipeline"
    beam.save(folder)
    return folder


@pytest.mark.slow
def test_outputs_equal_generate(beam, texts):
    texts = texts[:5]
    out = beam.generate(texts)
    answers = beam.answers(texts)
    assert [of[0].text for of in answers] == beam(texts)
    for row, of in enumerate(answers):
        assert len(of) == 2
        for n, answer in enumerate(of):
            assert answer.ids == out.ids[row, n, : out.lengths[row, n]].tolist()
            assert answer.score == pytest.approx(sum(answer.token_scores), rel=1e-4)
            assert answer.ranking_score == pytest.approx(out.ranking_scores[row, n])
        assert of[0].ranking_score >= of[1].ranking_score
    assert beam.answers([]) == []
    assert [one.text for one in beam.answers([""])[0]] == [""]


@pytest.mark.slow
def test_settings_are_saved_and_loaded(beam, saved, texts):
    loaded = pipelines.load(saved)
    assert (loaded.sampler, loaded.constraints) == (beam.sampler, beam.constraints)
    assert loaded(texts[:3]) == beam(texts[:3])


@pytest.mark.slow
def test_samples_do_not_depend_on_the_batch_size(pipeline, texts):
    sampling = pipeline.with_settings(Sample(1.3, seed=4))
    assert sampling(texts[:7], batch_size=3) == sampling(texts[:7])
    assert sampling(texts[:7]) != pipeline(texts[:7])


@pytest.mark.slow
def test_similar_lengths_are_compiled_once(random_transformer, pipeline, monkeypatch):
    traced = traced_searches(monkeypatch)
    model = random_transformer(20, vocabulary_size=pipeline.tokenizer.vocabulary_size)
    fresh = TextToText(model, pipeline.tokenizer, max_new_tokens=4)
    for batch in (["u", "un", "uno"], ["la", "el", "a", "d"], ["dos", "s", "es"]):
        fresh(batch)
    assert len(traced) == 1
    scored = []
    monkeypatch.setattr(generation.scoring, "score_ids", _counting(generation.scoring.score_ids, scored))
    for rows, length in ((3, 2), (4, 8), (3, 5)):
        generation.score(model, np.full((rows, length), 5), np.full((rows, length - 1), 6))
    assert len(scored) == 1


def _counting(function, calls):
    return lambda *args, **kwargs: calls.append(1) or function(*args, **kwargs)


@pytest.mark.slow
def test_streamed_pieces_concatenate_to_the_output(pipeline, texts):
    for text in (*texts[:4], ""):
        pieces = list(pipeline.stream(text))
        assert "".join(pieces) == pipeline(text)
        assert len(pieces) != 1 or len(pipeline(text).split()) <= 1
    with pytest.raises(ValueError, match="`stream` needs a `sampler` with a single hypothesis"):
        pipeline.with_settings("beam").stream("uno")
    with pytest.raises(TypeError, match="`text` must be a string"):
        pipeline.stream(["uno"])


def test_settings_of_a_speculative_pipeline_can_be_changed(pipeline):
    drafting = pipeline.with_settings(Speculative(pipeline.model, 2))
    shorter = drafting.with_settings(max_new_tokens=np.int64(3))
    assert (shorter.sampler, shorter.max_new_tokens) == (drafting.sampler, 3)
    assert isinstance(drafting.with_settings("greedy").sampler, generation.Greedy)


def test_the_constructor_rejects_contradictory_settings(pipeline):
    with pytest.raises(ValueError, match="`sampler` must be a `Beam`"):
        pipeline.with_settings("greedy", constraints=[ForcedWords([[5]])])
    with pytest.raises(ValueError, match="`constraints` must not contradict"):
        pipeline.with_settings(Beam(2), constraints=[ForcedWords([[5]]), BannedWords([[5]])])
    with pytest.raises(ValueError, match="`constraints` must contain"):
        pipeline.with_settings(constraints=[{"constraint": "Bann"}])


@pytest.fixture(scope="module")
def decoder(pipeline):
    known = pipeline.model
    return GPT(
        known.vocabulary_size, 1, 2, 8, max_length=32, pad_id=known.pad_id, end_id=known.end_id, dropout=0.0
    )


@pytest.mark.parametrize("kind", [TextToText, TextGeneration])
def test_a_model_of_another_type_is_rejected(pipeline, decoder, kind):
    bert = BERT(pipeline.model.vocabulary_size, 1, 2, 8, hidden_dim=8, max_length=32)
    other = decoder if kind is TextToText else pipeline.model
    for model in (other, Ensemble([other]), bert):
        with pytest.raises(TypeError, match=f"`model` must be a.* Received: a {type(model).__name__}"):
            kind(model, pipeline.tokenizer, max_new_tokens=8)


@pytest.mark.slow
def test_an_ensemble_generates_but_cannot_be_saved(pipeline, texts, tmp_path):
    both = pipeline.with_settings(model=Ensemble([pipeline.model, pipeline.model]))
    assert both(texts[:3]) == pipeline(texts[:3])
    (ensemble_score,), (single_score,) = (each.score(["uno"], ["one"]) for each in (both, pipeline))
    assert ensemble_score.token_scores == pytest.approx(single_score.token_scores, abs=1e-4)
    with pytest.raises(ValueError, match="`model` must be a Keras model.* Received: a Ensemble"):
        both.save(tmp_path / "both")
    assert list(tmp_path.iterdir()) == []
