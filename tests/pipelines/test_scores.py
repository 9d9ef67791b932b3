"""Scores of given targets, and alignments."""

import numpy as np
import pytest

from keras_transformer import generation, text
from keras_transformer.generation import Beam
from keras_transformer.models import GPT
from keras_transformer.pipelines import TextGeneration

SOURCES = ["la casa azul", "uno", "¿dónde está el perro?", "uno dos"]


@pytest.fixture(scope="module")
def ended(pipeline):
    """Return outputs with an end token whose texts tokenize to the same ids."""
    answers = [of[0] for of in pipeline.answers(SOURCES)]
    ids = pipeline.tokenizer.encode([one.text for one in answers], add_end=True).numpy()
    kept = [
        row
        for row, one in enumerate(answers)
        if ids[row][ids[row] != pipeline.model.pad_id].tolist() == one.ids
    ]
    return [SOURCES[row] for row in kept], [answers[row] for row in kept]


@pytest.mark.slow_variants
@pytest.mark.parametrize("batch_size", [1, 64])
def test_scores_equal_the_scores_of_generation(pipeline, ended, batch_size):
    sources, answers = ended
    assert answers
    found = pipeline.score(sources, [one.text for one in answers], batch_size)
    for score, answer in zip(found, answers, strict=True):
        assert (score.text, score.ids) == (answer.text, answer.ids)
        assert score.score == pytest.approx(answer.score, rel=1e-3)
        assert score.token_scores == pytest.approx(answer.token_scores, abs=1e-3)
        assert score.ranking_score == score.score


@pytest.mark.slow
def test_scores_do_not_depend_on_the_batch(pipeline):
    targets = ["the blue house", "one", "", "two one two one two"]
    beam = pipeline.with_settings(Beam(2, length_penalty=1.0, normalization="length"))
    for row, answer in enumerate(beam.score(SOURCES, targets, 2)):
        ids = pipeline.tokenizer.encode(targets[row : row + 1], add_end=True).numpy()
        single = generation.score(pipeline.model, pipeline.encode(SOURCES[row : row + 1]), ids)
        assert answer.ids == ids[0].tolist()
        assert answer.score == pytest.approx(single.scores[0], abs=1e-3)
        assert answer.ranking_score == pytest.approx(answer.score / len(answer.ids))
    assert pipeline.score([], []) == []


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((["uno"], ["one", "two"]), "`targets` must have one item for each of 1 texts. Received: 2"),
        ((["uno"], "one"), "`targets` must be a list of strings"),
        (("uno", ["one"]), "`texts` must be a list of strings"),
        ((["uno", " "], ["one", "two"]), r"`texts` must not be empty. Received: an empty text in texts\[1\]"),
        ((["uno"], [1]), r"`targets` must be strings. Received: targets\[0\]=1"),
        ((["uno"], ["one"], 0), "`batch_size` must be a positive integer"),
    ],
)
def test_invalid_arguments_are_rejected(pipeline, arguments, error):
    with pytest.raises((TypeError, ValueError), match=error):
        pipeline.score(*arguments)


@pytest.mark.slow
def test_alignments_equal_generation_align(pipeline):
    found = pipeline.align("la casa azul")
    out = pipeline.generate(["la casa azul"])
    weights = generation.align(pipeline.model, pipeline.encode(["la casa azul"]), out.best)[0]
    assert found.source == [*pipeline.tokenizer.pieces("la casa azul"), "</s>"]
    assert found.target == [
        pipeline.tokenizer.id_to_piece(int(id_)) for id_ in out.best[0, : out.lengths[0, 0]]
    ]
    np.testing.assert_allclose(found.weights, weights[: len(found.target)], atol=1e-5)
    np.testing.assert_allclose(found.weights.sum(axis=1), 1, atol=1e-5)
    given = pipeline.align("la casa azul", "the blue", layer=0, head=1)
    assert given.target == [*pipeline.tokenizer.pieces("the blue"), "</s>"]
    assert given.weights.shape == (len(given.target), len(given.source))
    with pytest.raises(ValueError, match="`texts` must not be empty"):
        pipeline.align("")
    with pytest.raises(TypeError, match="`target` must be a string"):
        pipeline.align("uno", ["one"])


TEXTS = ["to be, or not to be: that is the question", "whether 'tis nobler in the mind to suffer", "ñandú ☃"]
TOKENIZERS = {
    "byte_pair": lambda: text.BytePairTokenizer.train(TEXTS, 290),
    "sentence_piece": lambda: text.SentencePieceTokenizer.train(TEXTS, 320),
    "character_pair": lambda: text.OpenAIGPTTokenizer.train([*TEXTS, "w"], 80),
    "bytes": text.ByteTokenizer,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_continuation_is_scored_after_its_prompt(name):
    tokenizer = TOKENIZERS[name]()
    model = GPT(
        tokenizer.vocabulary_size, 1, 2, 8, max_length=48, pad_id=tokenizer.pad_id, end_id=tokenizer.end_id
    )
    writer = TextGeneration(model, tokenizer, max_new_tokens=6)
    prompts, targets = ["to be", "the question", "whether"], [" or not to be", "", " 'tis"]
    answers = writer.score(prompts, targets, 2)
    for prompt, target, answer in zip(prompts, targets, answers, strict=True):
        prompt_ids = tokenizer.tokenize(prompt).numpy().tolist()
        whole = tokenizer.tokenize(prompt + target).numpy().tolist()
        assert answer.ids == [*whole[len(prompt_ids) :], model.end_id]
        assert answer.score == pytest.approx(
            generation.score(model, [prompt_ids], [answer.ids]).scores[0], abs=1e-4
        )
    with pytest.raises(ValueError, match=r"must have at most 4[78] tokens each beside .* in targets\[1\]"):
        writer.score(["to", "to"], [" be", " be" * 48])
    with pytest.raises(ValueError, match="`model` must have `cross_attention_weights`"):
        writer.align("to be", " or")
