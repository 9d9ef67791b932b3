"""The command line of generating pipelines."""

import functools
import json

import numpy as np
import pytest

from keras_transformer import export, pipelines, text
from keras_transformer.generation import BannedWords, Beam, EndTokens, Ensemble, Greedy, NoRepeatNGram, Sample
from keras_transformer.models import BERT, GPT
from keras_transformer_cli import commands

TEXTS = ["la casa azul", "uno dos"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("command_line")


@pytest.fixture(autouse=True)
def load(monkeypatch, loaded):
    """Load each folder once, so that models are compiled once."""
    monkeypatch.setattr(pipelines, "load", loaded)


@pytest.fixture(scope="module")
def loaded():
    return functools.cache(pipelines.load)


@pytest.fixture(scope="module")
def saved(pipeline, folder):
    path = folder / "beam"
    pipeline.with_settings(Beam(3, num_return=2), constraints=[NoRepeatNGram(2)]).save(path)
    return path


@pytest.fixture(scope="module")
def beam(saved, loaded):
    return loaded(str(saved))


@pytest.fixture(scope="module")
def greedy(pipeline, folder):
    pipeline.save(folder / "greedy")
    return folder / "greedy"


@pytest.fixture(scope="module")
def translator(greedy, loaded):
    return loaded(str(greedy))


@pytest.fixture(scope="module")
def other(pipeline, random_transformer, folder, loaded):
    model = random_transformer(7, vocabulary_size=pipeline.tokenizer.vocabulary_size)
    pipeline.with_settings(model=model).save(folder / "other")
    return loaded(str(folder / "other"))


@pytest.fixture(scope="module")
def embedding(folder):
    tokenizer = text.ByteTokenizer()
    model = BERT(tokenizer.vocabulary_size, 1, 2, 8, hidden_dim=8, max_length=32, pad_id=tokenizer.pad_id)
    pipelines.Embedding(model, tokenizer).save(folder / "embedding")
    return folder / "embedding"


@pytest.fixture(scope="module")
def writer(folder):
    tokenizer = text.ByteTokenizer()
    model = GPT(
        tokenizer.vocabulary_size, 1, 2, 8, max_length=32, pad_id=tokenizer.pad_id, end_id=tokenizer.end_id
    )
    pipelines.TextGeneration(model, tokenizer, max_new_tokens=12).save(folder / "writer")
    return folder / "writer"


def command(capsys, *arguments):
    assert commands.main([*map(str, arguments)]) == 0
    return capsys.readouterr().out.splitlines()


def run(capsys, *arguments):
    return command(capsys, "generate", *arguments)


@pytest.mark.slow
def test_generation_settings_are_options(saved, beam, translator, capsys):
    texts = TEXTS
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
    ids = translator.tokenizer.tokenize(["dos"]).to_list()[0]
    (line,) = run(capsys, saved, texts[0], "--forced", "dos", "--num-return", "1", "--json")
    assert " ".join(map(str, ids)) in " ".join(map(str, json.loads(line)["ids"]))


def test_exports_have_the_settings_of_the_command_line(saved, embedding, tmp_path, monkeypatch, capsys):
    exported = []
    monkeypatch.setattr(export, "bundle", lambda pipeline, folder, **_: exported.append(pipeline) or folder)
    arguments = ["export", saved, tmp_path / "it", "--formats", "onnx", "ctranslate2"]
    command(capsys, *arguments)
    command(capsys, *arguments, "--sampler", "greedy", "--banned", "uno", "--max-new-tokens", "5")
    command(capsys, *arguments, "--sampler", "sample", "--top-k", "5", "--no-repeat-ngram", "3")
    command(capsys, *arguments, "--num-beams", "4")
    unchanged, greedy, drawing, wider = exported
    assert [pipeline.sampler for pipeline in exported] == [
        Beam(3, num_return=2),
        Greedy(),
        Sample(top_k=5),
        Beam(4, num_return=2),
    ]
    assert [type(one) for one in greedy.constraints] == [NoRepeatNGram, BannedWords]
    assert (drawing.constraints, wider.constraints) == ((NoRepeatNGram(3),), (NoRepeatNGram(2),))
    assert (greedy.max_new_tokens, drawing.max_new_tokens) == (5, unchanged.max_new_tokens)
    arguments[1] = embedding
    assert commands.main([*map(str, arguments), "--sampler", "greedy"]) == 2
    assert "`--sampler` must be None for a Embedding. Received: --sampler greedy" in capsys.readouterr().err
    arguments = ["export", saved, tmp_path / "es_en.argosmodel", "--formats", "argos", "--num-beams", "4"]
    assert commands.main([*map(str, arguments)]) == 2
    assert "`--num-beams` must be None for the format argos" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--temperature", "2"],
        ["--num-beams", "0"],
        ["--sampler", "greedy", "--forced", "uno"],
        ["--stream"],
        ["--max-new-tokens", "-1"],
    ],
    ids=" ".join,
)
def test_errors_about_settings_are_one_line(saved, capsys, arguments):
    assert commands.main(["generate", str(saved), "uno", *arguments]) == 2
    assert "keras-transformer: error: `" in capsys.readouterr().err


def test_errors_of_unknown_samplers_name_the_option(saved, capsys):
    with pytest.raises(SystemExit) as stopped:
        commands.main(["generate", str(saved), "uno", "--sampler", "bean"])
    assert stopped.value.code == 2
    assert "argument --sampler: invalid choice: 'bean'" in capsys.readouterr().err


def test_settings_fixed_at_export_cannot_be_changed(exported, capsys):
    assert commands.main(["generate", str(exported), "uno", "--num-beams", "2"]) == 2
    assert "`path` must be a pipeline to change settings" in capsys.readouterr().err


def test_an_export_has_the_options_of_texts(exported, pipeline, capsys):
    asked = ["uno", "dos", "--prefix", "the", "--max-new-tokens", "2,5", "--min-new-tokens", "1"]
    options = {"max_new_tokens": [2, 5], "min_new_tokens": 1}
    assert run(capsys, exported, *asked) == pipeline(["uno", "dos"], prefixes=["the"] * 2, **options)
    (line,) = run(capsys, exported, "uno", "--json")
    assert json.loads(line)["ids"] == pipeline.answers(["uno"])[0][0].ids
    assert run(capsys, exported, "uno", "--stream") == pipeline(["uno"])


@pytest.mark.slow
def test_prefixes_and_limits_apply_per_text(greedy, translator, capsys):
    asked = [greedy, *TEXTS, "--prefix", "the", "--prefix", "one two", "--max-new-tokens", "2,5"]
    expected = translator(TEXTS, prefixes=["the", "one two"], max_new_tokens=[2, 5])
    assert run(capsys, *asked) == expected
    assert run(capsys, *asked, "--stream") == expected
    assert run(capsys, greedy, *TEXTS, "--prefix", "the", "--max-new-tokens", 2) == translator(
        TEXTS, prefixes=["the"] * 2, max_new_tokens=2
    )
    longer = translator.with_settings(max_new_tokens=14)
    assert run(capsys, greedy, *TEXTS, "--max-new-tokens", "14") == longer(TEXTS)


@pytest.mark.slow
def test_other_pipelines_can_be_draft_or_ensemble_members(greedy, other, folder, translator, capsys):
    drafted = run(
        capsys, greedy, *TEXTS, "--sampler", "speculative", "--draft", folder / "other", "--num-tokens", 2
    )
    assert drafted == translator(TEXTS)
    both = translator.with_settings(model=Ensemble([translator.model, other.model]))
    assert run(capsys, greedy, *TEXTS, "--ensemble", folder / "other") == both(TEXTS)


@pytest.mark.slow
def test_additional_end_tokens_end_the_output(greedy, translator, capsys):
    first = translator.generate(TEXTS).best[:, 0]
    piece = translator.tokenizer.id_to_piece(int(first[0]))
    (found, _) = (json.loads(line) for line in run(capsys, greedy, *TEXTS, "--end", piece, "--json"))
    ending = translator.with_settings(constraints=[EndTokens([int(first[0])])])
    assert found["ids"] == ending.answers(TEXTS)[0][0].ids == [first[0]]


@pytest.mark.slow
def test_beam_search_can_run_without_early_stopping(saved, beam, capsys):
    whole = beam.with_settings(Beam(3, num_return=2, early_stopping=False))
    expected = [one.text for of in whole.answers(TEXTS) for one in of]
    assert run(capsys, saved, *TEXTS, "--no-early-stopping") == expected


@pytest.mark.slow
def test_max_new_tokens_limits_the_prompt_length(writer, capsys):
    (longer,) = run(capsys, writer, "abc", "--max-new-tokens", 16, "--json")
    assert len(json.loads(longer)["ids"]) == 16
    assert len(run(capsys, writer, "a" * 24, "--max-new-tokens", 8)) == 1


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--stream", "--json"], "`--stream` must not be combined"),
        (["--stream", "--scores"], "`--stream` must not be combined"),
        (["--sampler", "speculative"], "`--draft` is required with --sampler speculative"),
        (["--draft", "beam"], "`--draft` is required with --sampler speculative"),
        (
            ["--sampler", "speculative", "--draft", "writer"],
            "`--draft` must be a pipeline with the tokenizer",
        ),
        (["--ensemble", "writer"], "`--ensemble` must be a pipeline with the tokenizer of `path`"),
        (["--ensemble", "embedding"], "`--ensemble` must be a generating pipeline"),
        (["--early-stopping"], "`--early-stopping` must be a setting of the sampler. Received: greedy"),
        (["--prefix", "a", "--prefix", "b"], "`--prefix` must occur once, or once for each of 1 texts"),
        (["--max-new-tokens", "3,4"], "`--max-new-tokens` must occur once, or once for each of 1 texts"),
        (["--end", "uno dos"], "`--end` must be one token"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_errors_are_one_line(greedy, writer, embedding, folder, capsys, arguments, error):
    folders = ("beam", "writer", "embedding")
    arguments = [str(folder / one) if one in folders else one for one in arguments]
    assert commands.main(["generate", str(greedy), "uno", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"keras-transformer: error: {error}" in line


@pytest.mark.parametrize(
    "arguments", [["generate", "a"], ["generate", "a", "--scores"], ["score", "a", "b"], ["align", "a"]]
)
def test_a_pipeline_that_does_not_generate_is_rejected(embedding, capsys, arguments):
    name, *rest = arguments
    assert commands.main([name, str(embedding), *rest]) == 2
    assert "`path` must be a generating pipeline. Received: " in capsys.readouterr().err


@pytest.mark.slow
def test_score_prints_the_score_of_each_pair(greedy, translator, capsys, standard_input):
    sources, targets = TEXTS, ["the blue house", "one two"]
    expected = [f"{one.score:.4f}\t{one.text}" for one in translator.score(sources, targets)]
    standard_input("\ufeffla casa azul\tthe blue house\r\n\r\nuno dos\tone two\n")
    assert command(capsys, "score", greedy) == expected
    assert command(capsys, "score", greedy, sources[0], targets[0])[0].split("\t")[1] == targets[0]


@pytest.mark.parametrize("given", ["uno", "uno\tone\tdos", "uno\tone\n\nuno"])
def test_malformed_lines_of_pairs_are_named(greedy, capsys, standard_input, given):
    standard_input(given)
    assert commands.main(["score", str(greedy)]) == 2
    assert "one tab and an output. Received: " in capsys.readouterr().err
    assert commands.main(["score", str(greedy), "uno"]) == 2
    assert "`target` is required" in capsys.readouterr().err


@pytest.mark.slow
def test_align_prints_a_line_per_piece_and_plots(greedy, translator, tmp_path, capsys):
    found = translator.align("la casa", "the house")
    picture = tmp_path / "attention.png"
    lines = command(capsys, "align", greedy, "la casa", "the house", "--output", picture)
    columns = [line.split() for line in lines]
    assert [piece for piece, _, _ in columns] == found.target
    assert [piece for _, piece, _ in columns] == [found.source[i] for i in found.weights.argmax(axis=1)]
    assert [float(weight) for *_, weight in columns] == pytest.approx(found.weights.max(axis=1), abs=0.01)
    assert picture.read_bytes().startswith(b"\x89PNG")
    answered = [
        line.split()[0] for line in command(capsys, "align", greedy, "la casa", "--head", 0, "--head", 1)
    ]
    assert answered == translator.align("la casa").target


@pytest.mark.slow
def test_average_saves_a_pipeline_with_the_mean_of_weights(
    greedy, other, translator, loaded, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(pipelines, "load", loaded.__wrapped__)  # a separate model, as it changes
    files = [str(tmp_path / name) for name in ("a.weights.h5", "b.weights.h5")]
    for file, model in zip(files, (translator.model, other.model), strict=True):
        model.save_weights(file)
    arguments = ["average", str(greedy), *files, "--output", str(tmp_path / "mean")]
    assert command(capsys, *arguments) == [str(tmp_path / "mean")]
    averaged = pipelines.load(tmp_path / "mean")
    assert averaged.generation_config() == translator.generation_config()
    for mean, *both in zip(
        *(model.get_weights() for model in (averaged.model, translator.model, other.model)), strict=True
    ):
        np.testing.assert_allclose(mean, sum(both) / 2, atol=1e-6)
    assert commands.main(arguments) == 2
    assert "`--output` must be new" in capsys.readouterr().err
