"""Pairs that a model generates: complete, in order, and continued after an interruption."""

import numpy as np
import pytest

from keras_transformer import pipelines, processes, recipes
from keras_transformer_cli import commands, synthetic

TEXTS = ["uno dos", "la casa", "uno dos", "", "  ", "tab\there", "two\nlines", "ñandú"]
UNIQUE = ["uno dos", "la casa", "tab here", "two lines", "ñandú"]


def upper(texts):
    return [text.upper() for text in texts]


def lines(path):
    return [tuple(line.split("\t")) for line in path.read_text(encoding="utf-8").splitlines()]


def silent(line):
    pass


class Export:
    """An export from text to text, whose sampler is fixed."""

    languages = ("en_XX", "es_XX")
    split_texts = None

    def __call__(self, texts, long_texts, **chosen):
        return [" ".join([text.upper(), *chosen.values()]) for text in texts]


class Teacher(Export):
    """A pipeline from text to text."""

    def with_settings(self, sampler):
        return self


@pytest.mark.parametrize("chunk", [1, 2, 100])
@pytest.mark.parametrize("generated_first", [False, True])
def test_each_text_has_its_output_once_and_in_order(chunk, generated_first, tmp_path):
    options = {"generated_first": generated_first, "chunk": chunk, "say": silent}
    path = recipes.generate_pairs(upper, iter(TEXTS), tmp_path / "new" / "pairs.tsv", **options)
    order = -1 if generated_first else 1
    assert lines(path) == [(text, text.upper())[::order] for text in UNIQUE]
    assert [file.name for file in path.parent.iterdir()] == ["pairs.tsv"]


def test_texts_with_empty_outputs_are_left_out(tmp_path):
    path = recipes.generate_pairs(
        lambda texts: ["", *texts[1:]], TEXTS, tmp_path / "p.tsv", chunk=2, say=silent
    )
    assert [source for source, _ in lines(path)] == [UNIQUE[1], UNIQUE[3]]


def interrupted(path, key, after=1):
    """Generate with a function that fails after some chunks."""
    calls = []

    def generate(texts):
        if len(calls) == after:
            raise KeyboardInterrupt
        calls.append(texts)
        return upper(texts)

    with pytest.raises(KeyboardInterrupt):
        recipes.generate_pairs(generate, TEXTS, path, key=key, chunk=2, say=silent)


def test_an_interrupted_call_continues_after_the_texts_that_are_done(tmp_path):
    path, seen, said = tmp_path / "pairs.tsv", [], []
    interrupted(path, "model 1")
    assert not path.exists()
    (part,) = tmp_path.iterdir()
    with open(part, "a", encoding="utf-8") as file:
        file.write("TAB HE")  # an incomplete line

    def generate(texts):
        seen.extend(texts)
        return upper(texts)

    recipes.generate_pairs(generate, TEXTS, path, key="model 1", chunk=2, say=said.append)
    assert seen == UNIQUE[2:]
    assert lines(path) == [(text, text.upper()) for text in UNIQUE]
    assert said[0] == "Continuing after 2 of 5 texts"


@pytest.mark.parametrize("changed", ["key", "texts"])
def test_another_model_or_other_texts_start_again(changed, tmp_path):
    path, seen = tmp_path / "pairs.tsv", []
    interrupted(path, "model 1")
    texts = TEXTS if changed == "key" else ["nuevo", *TEXTS]
    key = "model 2" if changed == "key" else "model 1"
    recipes.generate_pairs(lambda part: seen.extend(part) or part, texts, path, key=key, say=silent)
    assert seen == (UNIQUE if changed == "key" else ["nuevo", *UNIQUE])


@pytest.mark.parametrize("count", [2, 3, 7])
def test_processes_share_the_texts(count, tmp_path, monkeypatch):
    path, seen = tmp_path / "pairs.tsv", []
    monkeypatch.setattr(processes, "exchange", lambda *_, **__: [])
    for index in reversed(range(count)):  # process 0 comes last, and joins
        monkeypatch.setattr(processes, "current", lambda index=index: processes.Process(index, count))
        recipes.generate_pairs(
            lambda texts: seen.extend(texts) or upper(texts), TEXTS, path, chunk=2, say=silent
        )
    assert sorted(seen) == sorted(UNIQUE)
    assert lines(path) == [(text, text.upper()) for text in UNIQUE]


def test_bad_input(tmp_path):
    path = tmp_path / "pairs.tsv"
    with pytest.raises(ValueError, match=r"`texts` must have at least one text that is not empty"):
        recipes.generate_pairs(upper, ["", " "], path)
    with pytest.raises(ValueError, match="`chunk` must be a positive integer"):
        recipes.generate_pairs(upper, TEXTS, path, chunk=0)
    path.write_text("mine")
    with pytest.raises(FileExistsError, match=r"`path` must be new. Received: .*pairs.tsv"):
        recipes.generate_pairs(upper, TEXTS, path)
    assert path.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [path]


@pytest.fixture
def teacher(monkeypatch, tmp_path):
    """Replace the pipeline of the folder "teacher" by a function."""
    folder = tmp_path / "teacher"
    folder.mkdir()
    (folder / "config.json").write_text('{"pipeline": "TextToText"}')
    monkeypatch.setattr(synthetic.generation, "load", lambda path: Teacher())
    return folder


def test_back_translate_writes_generated_sources_first(teacher, tmp_path):
    data, output = tmp_path / "english.txt", tmp_path / "pairs.tsv"
    data.write_text("one\n\ntwo words\n")
    arguments = ["back-translate", teacher, "--data", data, "--output", output]
    assert commands.main([str(argument) for argument in arguments]) == 0
    assert lines(output) == [("ONE", "one"), ("TWO WORDS", "two words")]
    assert commands.main([str(argument) for argument in arguments]) == 2


def test_distill_trains_a_student_on_the_outputs_of_the_teacher(teacher, tmp_path, monkeypatch):
    data, output, trained = tmp_path / "pairs.csv", tmp_path / "out", []
    data.write_text("es,en\nuno,one\ndos tres,two three\n")
    monkeypatch.setattr(
        synthetic.training, "run", lambda options, values, folder: trained.append((values, folder)) or 0
    )
    arguments = ["distill", teacher, "--data", data, "--columns", "es", "--output", output, "--epochs", 3]
    assert commands.main([str(argument) for argument in arguments]) == 0
    assert lines(output / "pairs.tsv") == [("uno", "UNO"), ("dos tres", "DOS TRES")]
    assert trained == [({"data": [output / "pairs.tsv"], "header": False, "epochs": 3}, output / "student")]
    assert commands.main([str(argument) for argument in arguments]) == 2  # the folder exists
    monkeypatch.setattr(synthetic.generation, "load", lambda path: pytest.fail("generated again"))
    assert commands.main([*map(str, arguments), "--resume"]) == 0


@pytest.mark.parametrize("place", ["tokenizer", "pipeline/tokenizer"])
def test_a_student_has_the_tokenizer_of_its_teacher_by_default(teacher, tmp_path, monkeypatch, place):
    (teacher / place).mkdir(parents=True)
    data, chosen = tmp_path / "texts.txt", []
    data.write_text("uno\n")
    monkeypatch.setattr(
        synthetic.training, "run", lambda _, values, __: chosen.append(values.get("tokenizer")) or 0
    )
    for number, more in enumerate(([], ["--vocabulary-size", "100"], ["--tokenizer", "bpe"])):
        arguments = ["distill", teacher, "--data", data, "--output", tmp_path / f"out{number}", *more]
        assert commands.main([str(argument) for argument in arguments]) == 0
    assert chosen == [teacher / place, None, "bpe"]


@pytest.mark.parametrize("command", ["distill", "back-translate"])
def test_the_model_that_generates_gets_the_languages(teacher, tmp_path, monkeypatch, command):
    data, output = tmp_path / "texts.txt", tmp_path / "out"
    data.write_text("uno\n")
    monkeypatch.setattr(synthetic.training, "run", lambda _, values, __: "source_language" in values)
    arguments = [command, teacher, "--data", data, "--output", output, "--source-language"]
    assert commands.main([str(argument) for argument in [*arguments, "es_XX"]]) == 0
    written = lines(output / "pairs.tsv" if command == "distill" else output)
    assert written == [("uno", "UNO es_XX")[:: 1 if command == "distill" else -1]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sample"], "that of an export is fixed. Received: {}, --sample"),
        (["--num-beams", "2"], "that of an export is fixed. Received: {}, --num-beams 2"),
        (["--num-beams", "0"], "`--num-beams` must be a positive integer"),
        (["--num-beams", "2", "--sample"], "`--num-beams` must not be combined with --sample"),
        (["--source-language", "fr_XX"], "Received: fr_XX"),
    ],
)
def test_settings_that_a_model_does_not_have_are_named(
    teacher, tmp_path, monkeypatch, capsys, options, message
):
    data, output = tmp_path / "texts.txt", tmp_path / "pairs.tsv"
    data.write_text("uno\n")
    monkeypatch.setattr(synthetic.generation, "load", lambda path: Export())
    arguments = ["back-translate", teacher, "--data", data, "--output", output, *options]
    assert commands.main([str(argument) for argument in arguments]) == 2
    assert message.format(teacher) in capsys.readouterr().err
    assert not output.exists()


@pytest.mark.slow
def test_a_student_learns_the_outputs_of_its_teacher(tmp_path):
    """The teacher writes words in upper case, with one mistake that only it makes."""
    numbers = ("one", "two", "three", "four", "five", "six")
    drawn = np.random.default_rng(0)
    texts = [" ".join(drawn.choice(numbers, 3)) for _ in range(200)]

    def teach(sources):
        return [text.upper().replace("SIX", "VI") for text in sources]

    pairs = recipes.generate_pairs(teach, texts, tmp_path / "pairs.tsv", say=silent)
    size = {"layers": 1, "heads": 2, "model_dim": 32, "vocabulary_size": 336, "max_length": 32}
    training = {"epochs": 60, "patience": 60, "batch_size": 16, "learning_rate": 0.01, "jit_compile": False}
    recipe = recipes.Translate(pairs, **size, **training)
    student, _ = recipe.train(verbose=0)
    scores = pipelines.evaluate(student, list(zip(texts[:50], teach(texts[:50]), strict=True)))
    assert scores["exact_match"] > 0.8
