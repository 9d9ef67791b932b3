"""Documents that `predict` translates: texts and subtitles."""

import io
import itertools
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer_cli import commands, documents, prediction
from keras_transformer_serving.text import splitting

TEXT = "\ufeffUna casa. Dos casas!\r\n\r\n\r\n  * * *\r\n\tTres  casas.\r\nUna casa tan larga que no cabe, y otra.\r\n"
SUBTITLES = (
    "\ufeff1\r\n00:00:01,000 --> 00:00:02,500 X1:1 X2:2\r\n<i>I think that\r\nwe should go.</i>\r\n\r\n\r\n"
    "2\r\n00:00:03.000 --> 00:00:04.000\r\n- Hello!\r\n– <b>Hi,</b> you\r\nand you.\r\n\r\n"
    "3\r\n0:00:05,0 --> 00:00:06,000\r\n{\\an8}♪ la <u>la</u> la ♪\r\n\r\n4\n00:00:05,000 --> 00:00:06,000\n...\n\n"
    "5\n00:00:05,000 --> 00:00:06,000\n\n6\n00:00:05,000 --> 00:00:06,000\n-5 degrees\nat night"
)
# A copy drops only inner tags.
COPIED = SUBTITLES.replace("<b>Hi,</b> you", "<b>Hi, you</b>").replace("<u>la</u>", "la")


class Translator:
    """A translator of texts of at most 20 characters by a function; `calls` records the texts."""

    def __init__(self, translate=str):
        self.translate = translate
        self.calls = []

    def __call__(self, texts, long_texts=None):
        self.calls.append((list(texts), long_texts))
        return [self.translate(text) for text in texts]

    def split_texts(self, texts):
        return splitting.split_texts(texts, lambda parts: list(map(len, parts)), 20)


@pytest.fixture
def predict(monkeypatch, tmp_path, capsys):
    """Return predict(translator, content, *options), which gives output (-1 after an error) and standard error."""
    numbers = itertools.count()

    def run(translator, content, *options, suffix="txt", name="TextToText"):
        number = next(numbers)
        source, target = (tmp_path / f"{side}{number}.{suffix}" for side in ("in", "out"))
        source.write_bytes(content if isinstance(content, bytes) else content.encode())
        monkeypatch.setattr(prediction, "load", lambda _: prediction.Predictor(name, translator, (1,)))
        arguments = ["predict", "x", "--input", str(source), "--output", str(target), *options]
        status = commands.main(arguments)
        error = capsys.readouterr().err
        assert len(list(tmp_path.iterdir())) == number + 1 + sum(
            path.name[:3] == "out" for path in tmp_path.iterdir()
        )
        return (target.read_bytes().decode() if status == 0 else status), error

    return run


def test_translated_texts_keep_lines_paragraphs_and_spaces(predict):
    translator = Translator(str.upper)
    output, error = predict(translator, TEXT, "--long-texts", "split")
    assert output == TEXT.upper()
    assert error == ""
    (parts, _), *others = translator.calls
    assert not others
    assert parts[:3] == ["Una casa.", "Dos casas!", "Tres  casas."]
    assert max(map(len, parts)) <= 20


def test_translated_subtitles_keep_everything_except_the_text(predict):
    translator = Translator()
    output, _ = predict(translator, SUBTITLES, suffix="SRT")
    assert output == COPIED
    texts = ["I think that we should go.", "Hello!", "Hi, you and you.", "la la la", "-5 degrees at night"]
    assert translator.calls == [(texts, None)]
    predict(translator, SUBTITLES, "--long-texts", "split", suffix="srt")
    assert translator.calls[-1] == (texts, "split")


@pytest.mark.parametrize(
    ("translation", "lines"),
    [
        ("eins zwei drei vier fünf", "<i>eins zwei\r\ndrei vier fünf</i>"),
        ("eins", "<i>eins</i>"),
        ("", "<i></i>"),
        ("a\nb", "<i>a\r\nb</i>"),
    ],
)
def test_translated_subtitles_have_the_same_number_of_lines(translation, lines):
    def translate(texts):
        return [translation for _ in texts]

    output = documents.translate_subtitles(SUBTITLES, translate, "x.srt")
    assert f"X2:2\r\n{lines}\r\n\r\n\r\n2\r\n" in output
    assert [line for line in output.splitlines() if "-->" in line] == [
        line for line in SUBTITLES.splitlines() if "-->" in line
    ]


@given(st.lists(st.text(st.sampled_from("ab -♪.\t"), max_size=12), min_size=1, max_size=4))
def test_copying_subtitles_reproduces_the_original(lines):
    content = (
        "1\n00:00:01,000 --> 00:00:02,000\n" + "\n".join(line for line in lines if line.strip()) + "\n\n"
    )
    assert documents.translate_subtitles(content, list, "x.srt") == content


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("WEBVTT\n", "must have the number of a subtitle in line 1. Received: 'WEBVTT'"),
        (
            "\n1\nHello\n",
            "must have times such as 00:00:01,000 --> 00:00:02,000 in line 3. Received: 'Hello'",
        ),
        ("1\n", "in line 2. Received: the end of the file"),
        (
            "1\n00:00:01,000 --> 00:00:02,000\na\n\nb\n",
            "must have the number of a subtitle in line 5. Received: 'b'",
        ),
        ("qué".encode("latin-1"), "`--input` must be UTF-8"),
    ],
)
def test_malformed_files_are_rejected(predict, content, message):
    status, error = predict(Translator(), content, suffix="srt")
    assert status == 2
    assert message in error


def test_invalid_options_and_pipelines_are_rejected(predict, capsys):
    status, error = predict(lambda texts: texts, "a", "--long-texts", "split", name="TextGeneration")
    assert status == 2
    assert "`folder` must be a TextToText, or its export with ONNX graphs, for --long-texts" in error
    assert predict(lambda texts: texts, SUBTITLES, suffix="srt")[0] == 2
    status, error = predict(Translator(), SUBTITLES, "--format", "jsonl", suffix="srt")
    assert (status, error) == (
        2,
        "keras-transformer: error: `--format` must be text for subtitles. Received: jsonl\n",
    )


def test_an_error_leaves_no_file(predict):
    def fail(text):
        raise ValueError("`texts` must be short")

    assert predict(Translator(fail), TEXT, "--long-texts", "split")[0] == 2


def test_lines_and_standard_input_are_split_on_request(predict, monkeypatch, capsys):
    translator = Translator(str.upper)
    output, _ = predict(translator, "una\n\ndos", "--long-texts", "refuse")
    assert output == "UNA\n\nDOS\n"
    assert translator.calls[-1] == (["una", "", "dos"], "refuse")
    assert (
        '"answer": "UNA"' in predict(translator, "una\ndos", "--long-texts", "split", "--format", "jsonl")[0]
    )
    assert translator.calls[-1] == (["una", "dos"], "split")
    monkeypatch.setattr(sys, "stdin", io.StringIO("  una\n\n\ndos"))
    assert commands.main(["predict", "x", "--long-texts", "split"]) == 0
    assert capsys.readouterr().out == "  UNA\n\n\nDOS"


def test_long_files_show_progress(predict, monkeypatch):
    _, error = predict(Translator(), "Una casa.\n" * 600, "--long-texts", "split")
    assert [line.split(",")[0] for line in error.splitlines()] == [
        f"{count} of 600 sentences" for count in (256, 512, 600)
    ]
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    _, error = predict(Translator(), "Una casa.\n" * 600, "--long-texts", "split")
    assert error.count("\n") == 1
    assert error.count("\r") == 3


def test_the_options_for_tags_and_glossaries_are_passed_to_the_translator(predict, tmp_path_factory):
    calls = []

    class Recorder(Translator):
        def __call__(self, texts, **options):
            calls.append((list(texts), options))
            return list(texts)

    glossary = tmp_path_factory.mktemp("glossary")
    entries, wrong = glossary / "entries.tsv", glossary / "wrong.tsv"
    entries.write_text("\ufeffcasa\thome\n\nperro azul\tblue dog\r\n", encoding="utf-8")
    wrong.write_text("casa\thome\nperro\n", encoding="utf-8")
    page = "\ufeff<p>Una\r\n<b>casa</b>\n"
    output, _ = predict(Recorder(), page, "--tag-handling", "html", "--glossary", str(entries))
    terms = {"casa": "home", "perro azul": "blue dog"}
    assert output == page
    assert calls.pop() == ([page[1:]], {"tag_handling": "html", "glossary": terms})
    output, _ = predict(
        Recorder(), "{x} a\n%s\n", "--tag-handling", "placeholders", "--glossary-mode", "soft"
    )
    assert output == "{x} a\n%s\n"
    assert calls.pop() == (["{x} a", "%s"], {"tag_handling": "placeholders", "glossary_mode": "soft"})
    for options, message in (
        (("--glossary", str(wrong)), "separated by a tab, in line 2. Received: 'perro'"),
        (("--glossary", str(glossary / "missing.tsv")), "missing.tsv"),
    ):
        status, error = predict(Recorder(), "a", *options)
        assert status != 0
        assert message in error
    status, error = predict(Recorder(), SUBTITLES, "--tag-handling", "html", suffix="srt")
    assert "`--tag-handling` must not be given for subtitles" in error
    status, error = predict(str.upper, "a", "--glossary", str(entries), name="TextClassification")
    assert "for --long-texts, --tag-handling, --glossary and subtitles" in error
