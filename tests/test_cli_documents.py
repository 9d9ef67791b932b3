"""Documents that `predict` translates: texts and subtitles."""

import errno
import functools
import itertools
import json
import os
import re
import signal
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer_cli import commands, prediction, subtitles
from keras_transformer_serving.jobs import compute, run_one
from keras_transformer_serving.text import markup, splitting
from keras_transformer_serving.text.alignment import copied
from keras_transformer_serving.text.marked_text import MarkedText

TEXT = "\ufeffUna casa. Dos casas!\r\n\r\n\r\n  * * *\r\n\tTres  casas.\r\nUna casa tan larga que no cabe, y otra.\r\n"
SUBTITLES = (
    "\ufeff1\r\n00:00:01,000 --> 00:00:02,500 X1:1 X2:2\r\n<i>I think that\r\nwe should go.</i>\r\n\r\n\r\n"
    "2\r\n00:00:03.000 --> 00:00:04.000\r\n- Hello!\r\n– <b>Hi,</b> you\r\nand you.\r\n\r\n"
    "3\r\n0:00:05,0 --> 00:00:06,000\r\n{\\an8}♪ la <u>la</u> la ♪\r\n\r\n4\n00:00:05,000 --> 00:00:06,000\n...\n\n"
    "5\n00:00:05,000 --> 00:00:06,000\n\n6\n00:00:05,000 --> 00:00:06,000\n-5 degrees\nat night"
)
VTT = (
    "\ufeffWEBVTT - a film\r\nKind: captions\r\n\r\nNOTE\r\nnot read\r\n\r\nSTYLE\r\n::cue { color: red }\r\n\r\n"
    "intro\r\n00:01.000 --> 00:02.500 line:0%\r\n<v Ada>Salt &amp; pepper,\r\n<c.red>ready</c> to go\r\n\r\n"
    "01:00:03.000 --> 01:00:04.000\r\n- Hello <00:00:03.500>you\r\n- 1 &lt; 2 and &gt;\r\n\r\nNOTE the end"
)


class Translator:
    """A translator of texts of at most 20 characters by a function; `calls` records the texts."""

    def __init__(self, translate=str):
        self.translate = translate
        self.calls = []

    def __call__(self, texts, long_texts=None, tag_handling=None):
        self.calls.append((list(texts), long_texts if tag_handling is None else tag_handling))
        return [self.translate(text) for text in texts]

    def split_texts(self, texts):
        def split(text):
            return splitting.split(text, lambda parts: compute("count", parts), 20)

        methods = {"count": lambda batch: [[*map(len, parts)] for parts in batch]}
        return [run_one(split(text), methods) for text in texts]


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
    assert output == SUBTITLES
    texts = ["I think that we should go.", "Hello!", "-5 degrees at night"]
    marked = ["<x0>Hi,</x0> you and you.", "la <x0>la</x0> la"]
    assert translator.calls == [(texts, None), (marked, "html")]
    predict(translator, SUBTITLES, "--long-texts", "split", suffix="srt")
    assert translator.calls[-2] == (texts, "split")


def test_webvtt_is_read_as_subtitles(predict):
    translator = Translator()
    assert predict(translator, VTT, suffix="vtt")[0] == VTT
    assert translator.calls == [
        (["1 < 2 and >"], None),
        (["Salt &amp; pepper, <x0>ready</x0> to go", "Hello <x0/>you"], "html"),
    ]


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

    plain = re.sub("</?[bu]>", "", SUBTITLES)
    output = subtitles.translate(plain, translate, "x.srt")
    assert f"X2:2\r\n{lines}\r\n\r\n\r\n2\r\n" in output
    assert [line for line in output.splitlines() if "-->" in line] == [
        line for line in SUBTITLES.splitlines() if "-->" in line
    ]


@given(st.lists(st.text(st.sampled_from("ab -♪.\t"), max_size=12), min_size=1, max_size=4))
def test_copying_subtitles_reproduces_the_original(lines):
    content = (
        "1\n00:00:01,000 --> 00:00:02,000\n" + "\n".join(line for line in lines if line.strip()) + "\n\n"
    )
    assert subtitles.translate(content, list, "x.srt") == content


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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("1\n00:00:01,000 --> 00:00:02,000\na\n", "must have WEBVTT in line 1. Received: '1'"),
        ("WEBVTT\n\nHello\n\n", "must have times such as 00:01.000 --> 00:02.000 in line 4. Received: ''"),
    ],
)
def test_malformed_webvtt_is_rejected(predict, content, message):
    assert message in predict(Translator(), content, suffix="vtt")[1]


@pytest.mark.parametrize(
    ("line", "marked"),
    [
        ("a <b>c d</b> e", "a <x0>c d</x0> e"),
        ("<b>c</b> e", "<x0>c</x0> e"),
        ("a <b>c</b>", "a <x0>c</x0>"),
        ("<i>a <b>c</b> e</i>", "a <x0>c</x0> e"),
        ("<i><b>a</b> e <u>f</u></i>", "<x0>a</x0> e <x2>f</x2>"),
        ("a <i>b & <c>d</i> e", "a <x0>b &amp; <x1/>d</x0> e"),
        ("a {\\i1}b", "a <x0/>b"),
        ("<i>a & b</i>", "a & b"),
    ],
)
def test_tags_between_words_are_kept_around_their_translations(line, marked):
    texts = []

    def translate(given, tag_handling=None):
        texts.extend(given)
        if tag_handling == "html":
            return [run_one(MarkedText.of(text, "html"), {}).join([copied(text_of(text))]) for text in given]
        return given

    def text_of(text):
        (part,) = run_one(MarkedText.of(text, "html"), {}).parts
        return part

    content = f"1\n00:00:01,000 --> 00:00:02,000\n{line}\n"
    assert subtitles.translate(content, translate, "x.srt") == content
    assert texts == [marked]


@pytest.mark.parametrize(
    ("suffix", "advice"),
    [
        ("html", "pass --tag-handling html"),
        ("MD", "convert it to HTML"),
        ("po", "--tag-handling placeholders"),
        ("docx", "convert it to HTML or plain text"),
        ("csv", "one text in each line"),
        ("ass", "convert it to .srt"),
        ("sbv", "convert it to .srt"),
        ("tmx", "texts separated by tabs"),
        ("sdlxliff", "--tag-handling placeholders"),
        ("toml", "--tag-handling placeholders"),
        ("ts", "--tag-handling placeholders"),
        ("mdx", "convert it to HTML"),
        ("adoc", "convert it to HTML"),
        ("xhtm", "pass --tag-handling html"),
        ("dfxp", "convert it to .srt"),
        ("txt.gz", "decompress it"),
        ("jpg", "image classifier"),
        ("xyz", "must end in .txt or in the code of a language"),
    ],
)
def test_files_whose_lines_are_not_texts_are_rejected(predict, suffix, advice):
    status, error = predict(Translator(), "a", suffix=suffix)
    assert status == 2
    assert f"`--input` must be a file of texts, not .{suffix.lower().split('.')[-1]}: " in error
    assert advice in error
    assert re.search(r"pass it as standard input: --input - < \S*in0\.", error)
    assert predict(Translator(), "a", "--tag-handling", "html", suffix="html")[0] == "a"


@pytest.mark.parametrize(
    "suffix",
    [
        "TXT",
        "es",
        "no",
        "pt-BR",
        "spa",
        "spa_Latn",
        "zh-Hans",
        "tok",
        "txt.00",
        "devtest",
        "2_new",
        " a text",
    ],
)
def test_the_lines_of_plain_files_are_texts(predict, suffix):
    assert predict(Translator(), "a\nb", suffix=suffix)[0] == "a\nb\n"


class Strict(Translator):
    """A translator that rejects texts with a question mark, as pipelines do."""

    def __call__(self, texts, **options):
        for row, text in enumerate(texts):
            if "?" in text:
                raise ValueError(f"`texts` must be short. Received: 3 tokens in texts[{row}]")
        return super().__call__([text.upper() for text in texts], **options)


LINES = "".join(f"{row}{'?' if row in (3, 1999) else ''}a\n" for row in range(2050))


def test_errors_name_the_line_of_the_file(predict):
    message = "Received: 3 tokens in line {}\n"
    assert predict(Strict(), LINES)[1].endswith(message.format(4))
    assert predict(Strict(), LINES.replace("3?", "3"))[1].endswith(message.format(2000))
    for ends in ("\n\n", "\r\r", "\r\n\r"):
        document = f"a.{ends}b. c?\n"
        assert predict(Strict(), document, "--long-texts", "split")[1].endswith(message.format(3))
    assert predict(Strict(), SUBTITLES.replace("Hello!", "Hello?"), suffix="srt")[1].endswith(
        message.format(9)
    )
    assert predict(Strict(), SUBTITLES.replace("Hi,", "Hi?"), suffix="srt")[1].endswith(message.format(10))


def test_invalid_lines_are_skipped_or_returned(predict):
    output, error = predict(Strict(), LINES, "--on-error", "skip")
    assert output == "".join(line.upper() for line in LINES.splitlines(True) if "?" not in line)
    warning = (
        "predict {} 2 of 2050 lines (0.1 %). The first: `texts` must be short. Received: 3 tokens in line 4\n"
    )
    assert error.endswith(warning.format("skips"))
    output, error = predict(Strict(), LINES, "--on-error", "return")
    assert output.splitlines()[3] == "error: `texts` must be short. Received: 3 tokens in line 4"
    assert [output.splitlines()[row] for row in (2, 4, 1998, 2049)] == ["2A", "4A", "1998A", "2049A"]
    assert error.endswith(warning.format("returns errors for"))
    output, _ = predict(Strict(), "a\nb?\n", "--on-error", "return", "--format", "jsonl")
    assert [*map(json.loads, output.splitlines())] == [
        {"input": "a", "answer": "A"},
        {"input": "b?", "error": "`texts` must be short. Received: 3 tokens in line 2"},
    ]

    def fail(texts):
        raise ValueError("`glossary` must be short")

    status, error = predict(fail, "a\nb\nc\n", "--on-error", "skip")
    assert (status, error) == (2, "keras-transformer: error: `--glossary` must be short\n")
    _, error = predict(Translator(), SUBTITLES, "--long-texts", "truncate", suffix="srt")
    assert "`--long-texts` must be refuse or split for subtitles" in error
    _, error = predict(Strict(), SUBTITLES, "--on-error", "skip", suffix="srt")
    assert "`--on-error` must be raise for a file that is one document. Received: skip" in error


@pytest.mark.usefixtures("interrupts_are_handled")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_an_interrupted_command_leaves_no_output(monkeypatch, tmp_path, number, request):
    if number == signal.SIGHUP:  # nohup ignores it
        request.addfinalizer(functools.partial(signal.signal, number, signal.signal(number, signal.SIG_DFL)))

    def interrupt(texts):
        if "2000" in texts:
            signal.raise_signal(number)
        return texts

    source, target = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("\n".join(map(str, range(3000))))
    monkeypatch.setattr(prediction, "load", lambda _: prediction.Predictor("x", interrupt, (1,)))
    arguments = ["predict", "x", "--input", str(source), "--output", str(target)]
    before = signal.getsignal(signal.SIGTERM)
    if number == signal.SIGINT:
        assert commands.main(arguments) == 130
    else:
        with pytest.raises(SystemExit, match=str(128 + number)):
            commands.main(arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_full_disk_names_the_output_and_leaves_none(predict, monkeypatch):
    def fill(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fill)
    status, error = predict(Translator(), "a\n")
    assert status == 2
    assert "No space left on device" in error
    assert "out0.txt" in error


def test_an_error_leaves_no_file(predict):
    def fail(text):
        raise ValueError("`texts` must be short")

    assert predict(Translator(fail), TEXT, "--long-texts", "split")[0] == 2


def test_lines_and_standard_input_are_split_on_request(predict, standard_input, capsys):
    translator = Translator(str.upper)
    output, _ = predict(translator, "una\n\ndos", "--long-texts", "refuse")
    assert output == "UNA\n\nDOS\n"
    assert translator.calls[-1] == (["una", "", "dos"], "refuse")
    assert (
        '"answer": "UNA"' in predict(translator, "una\ndos", "--long-texts", "split", "--format", "jsonl")[0]
    )
    assert translator.calls[-1] == (["una", "dos"], "split")
    standard_input("\ufeff  una\r\n\n\rdos")
    assert commands.main(["predict", "x", "--long-texts", "split"]) == 0
    assert capsys.readouterr().out == "\ufeff  UNA\r\n\n\rDOS"


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
    entries.write_text("\ufeffcasa\thome\r\rperro\u2028azul\tblue dog\r\n", encoding="utf-8", newline="")
    wrong.write_text("casa\thome\nperro\n", encoding="utf-8")
    page = "\ufeff<p>Una\r\n<b>casa</b>\n"
    output, _ = predict(Recorder(), page, "--tag-handling", "html", "--glossary", str(entries))
    terms = {"casa": "home", "perro\u2028azul": "blue dog"}
    assert output == page
    assert calls.pop() == ([page[1:]], {"tag_handling": "html", "glossary": terms})
    output, _ = predict(
        Recorder(), "{x} a\n%s\n", "--tag-handling", "placeholders", "--glossary-mode", "soft"
    )
    assert output == "{x} a\n%s\n"
    assert calls.pop() == (["{x} a", "%s"], {"tag_handling": "placeholders", "glossary_mode": "soft"})
    tags = ("--tag-handling", "placeholders")
    predict(Recorder(), "a\n", *tags, "--placeholders", "url", "colon", "--placeholder-pattern", r"\[\w+\]")
    assert calls.pop()[1]["placeholders"] == ["url", "colon", re.compile(r"\[\w+\]")]
    predict(Recorder(), "a\n", *tags, "--placeholder-pattern", "a")
    assert calls.pop()[1]["placeholders"] == [*markup.DEFAULT_PLACEHOLDERS, re.compile("a")]
    for options, message in (
        ((*tags, "--placeholders", "xml"), "`--placeholders` must be a list of names in"),
        ((*tags, "--placeholder-pattern", "("), "`--placeholder-pattern` must be a regular expression"),
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
