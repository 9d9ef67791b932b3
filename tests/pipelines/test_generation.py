"""Samplers, constraints, n-best answers and streams of a pipeline, and the command line's settings for them."""

import json

import numpy as np
import pytest

from keras_transformer import cli, generation, pipelines
from keras_transformer.generation import BannedWords, Beam, ForcedWords, NoRepeatNGram, Sample, Speculative
from keras_transformer.pipelines import TextToText


@pytest.fixture(scope="module")
def beam(pipeline):
    return pipeline.with_settings(Beam(3, num_return=2), constraints=[NoRepeatNGram(2)])


@pytest.fixture(scope="module")
def saved(beam, tmp_path_factory):
    folder = tmp_path_factory.mktemp("settings") / "pipeline"
    beam.save(folder)
    return folder


def test_answers_are_what_generate_gives(beam, texts):
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


def test_settings_are_saved_and_loaded(beam, saved, texts):
    loaded = pipelines.load(saved)
    assert (loaded.sampler, loaded.constraints) == (beam.sampler, beam.constraints)
    assert loaded(texts[:3]) == beam(texts[:3])


def test_samples_do_not_depend_on_the_batch_size(pipeline, texts):
    sampling = pipeline.with_settings(Sample(1.3, seed=4))
    assert sampling(texts[:7], batch_size=3) == sampling(texts[:7])
    assert sampling(texts[:7]) != pipeline(texts[:7])


def test_near_lengths_compile_nothing_new(random_transformer, pipeline, monkeypatch):
    traced = []
    original = generation.generator.generate_ids
    monkeypatch.setattr(
        generation.generator,
        "generate_ids",
        lambda *args, **kwargs: traced.append(1) or original(*args, **kwargs),
    )
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


def test_the_pieces_of_a_stream_are_the_answer(pipeline, texts):
    for text in (*texts[:4], ""):
        pieces = list(pipeline.stream(text))
        assert "".join(pieces) == pipeline(text)
        assert len(pieces) != 1 or len(pipeline(text).split()) <= 1
    with pytest.raises(ValueError, match="`sampler` must be of a single hypothesis"):
        pipeline.with_settings("beam").stream("uno")
    with pytest.raises(TypeError, match="`text` must be a string"):
        pipeline.stream(["uno"])


def test_settings_of_a_pipeline_that_drafts_can_be_changed(pipeline):
    drafting = pipeline.with_settings(Speculative(pipeline.model, 2))
    shorter = drafting.with_settings(max_new_tokens=np.int64(3))
    assert (shorter.sampler, shorter.max_new_tokens) == (drafting.sampler, 3)
    assert isinstance(drafting.with_settings("greedy").sampler, generation.Greedy)


def test_settings_that_contradict_each_other_are_named_from_the_beginning(pipeline):
    with pytest.raises(ValueError, match="`sampler` must be a `Beam`"):
        pipeline.with_settings("greedy", constraints=[ForcedWords([[5]])])
    with pytest.raises(ValueError, match="`constraints` must not contradict"):
        pipeline.with_settings(Beam(2), constraints=[ForcedWords([[5]]), BannedWords([[5]])])
    with pytest.raises(ValueError, match="`constraints` must hold"):
        pipeline.with_settings(constraints=[{"constraint": "Bann"}])


def run(capsys, *arguments):
    assert cli.main(["generate", *map(str, arguments)]) == 0
    return capsys.readouterr().out.splitlines()


def test_the_command_line_takes_settings(saved, beam, pipeline, capsys):
    texts = ["la casa azul", "uno dos"]
    answers = beam.answers(texts)
    lines = [line.split("\t") for line in run(capsys, saved, *texts, "--scores")]
    assert [line[1] for line in lines] == [one.text for of in answers for one in of]
    np.testing.assert_allclose(
        [float(line[0]) for line in lines], [one.score for of in answers for one in of], atol=1e-3
    )
    found = [json.loads(line) for line in run(capsys, saved, *texts, "--json", "--num-return", "1")]
    assert [one["row"] for one in found] == [0, 1]
    assert [one["ids"] for one in found] == [of[0].ids for of in answers]
    greedy = beam.with_settings("greedy")
    assert run(capsys, saved, texts[0], "--sampler", "greedy", "--stream") == [greedy(texts[0])]
    ids = pipeline.tokenizer.tokenize(["dos"]).to_list()[0]
    (line,) = run(capsys, saved, texts[0], "--forced", "dos", "--num-return", "1", "--json")
    assert " ".join(map(str, ids)) in " ".join(map(str, json.loads(line)["ids"]))


@pytest.mark.parametrize(
    "arguments",
    [
        ["--sampler", "bean"],
        ["--temperature", "2"],
        ["--num-beams", "0"],
        ["--sampler", "greedy", "--forced", "uno"],
        ["--stream"],
        ["--max-new-tokens", "-1"],
    ],
    ids=" ".join,
)
def test_wrong_settings_are_one_line(saved, capsys, arguments):
    assert cli.main(["generate", str(saved), "uno", *arguments]) == 2
    assert "keras-transformer: error: `" in capsys.readouterr().err


def test_an_export_has_settings_of_its_own(exported, capsys):
    assert cli.main(["generate", str(exported), "uno", "--scores"]) == 2
    assert "`path` must be a pipeline where settings are given" in capsys.readouterr().err
