import collections
import csv
import gzip
import itertools
import json
import logging
import pathlib
import re
import subprocess
import unicodedata

import pytest

from keras_transformer import data, text
from keras_transformer.data import language_modeling, masked_language_modeling, read_examples
from keras_transformer_options.tasks import TASKS

PAIRS = [("hola", "hello"), ('di "sí"', "say, yes;"), ("á\u2028é", "l1\u0085l2")]


def csv_field(field):
    return '"' + field.replace('"', '""') + '"'


def contents(pairs):
    """Return the same pairs in each format, with and without a header."""
    tsv = ["\t".join(pair) for pair in pairs]
    commas, semicolons = ([mark.join(map(csv_field, pair)) for pair in pairs] for mark in ",;")
    objects = [json.dumps({"id": 7, "target": target, "source": source}) for source, target in pairs]
    return {
        "a.tsv": tsv,
        "b.tsv": ["source\ttarget", *tsv],
        "c.csv": commas,
        "d.csv": ["target,source", *[",".join(map(csv_field, pair[::-1])) for pair in pairs]],
        "e.csv": ["source;target", *semicolons],
        "f.csv": semicolons,
        "g.jsonl": objects,
        "h.JSONL": [json.dumps({"source": s, "target": t}, ensure_ascii=False) for s, t in pairs],
    }


@pytest.mark.parametrize("ends", [["\n"], ["\r\n"], ["\r"], ["\r", "\n"], ["\n", "\r\n", "\r"]], ids=" ".join)
@pytest.mark.parametrize("bom", ["", "\ufeff"])
def test_all_formats_read_the_same_examples(tmp_path, ends, bom):
    for name, lines in contents(PAIRS).items():
        columns = (0, 1) if name[0] in "acf" else ("source", "target")
        encoded = (bom + "".join(map("".join, zip(lines, itertools.cycle(ends), strict=False)))).encode()
        (tmp_path / name).write_bytes(encoded)
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(encoded.rstrip(b"\r\n")))
        for path in (tmp_path / name, str(tmp_path / f"{name}.gz")):
            assert read_examples(path, columns) == PAIRS, path
    assert read_examples([tmp_path / "a.tsv", tmp_path / "f.csv"]) == PAIRS * 2
    assert read_examples(tmp_path / "h.JSONL") == PAIRS
    assert read_examples(tmp_path / "d.csv", "target") == [(target,) for _, target in PAIRS]
    assert read_examples(tmp_path / "a.tsv", (1, 0)) == [pair[::-1] for pair in PAIRS]


def test_fields_in_quotes_may_contain_line_ends(tmp_path):
    file = tmp_path / "a.csv"
    file.write_bytes(b'text,label\r\n"one\r\ntwo, ""three""\n",1\r\nx,0\r\n')
    assert read_examples(file, ("text", "label")) == [('one\r\ntwo, "three"\n', "1"), ("x", "0")]


def test_lines_of_a_text_file_are_examples(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("one\n\n two, \t2\n", "utf-8")
    assert read_examples(file) == [("one",), (" two, \t2",)]
    assert read_examples(file, format="text") == read_examples(file, 0)


def test_numbers_of_json_objects_are_read_as_written(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "a", "label": 1}\n{"text": "b", "label": 0.50}\n')
    assert read_examples(file) == [("a", "1"), ("b", "0.50")]


MESSY = {
    # content, columns, malformed lines as (line number, words of the reason), remaining examples
    "empty-line.tsv": ("a\tb\n\nc\td\n", None, [(2, "an empty line")], [("a", "b"), ("c", "d")]),
    "third.tsv": ("a\tb\nc\td\te\n", None, [(2, "3 columns instead of 2")], [("a", "b")]),
    "picked.tsv": (
        "a\tb\nc\td\te\nf\n",
        (0, 1),
        [(3, "1 columns instead of at least 2")],
        [("a", "b"), ("c", "d")],
    ),
    "field.tsv": ("a\tb\nc\t \n", None, [(2, "an empty field")], [("a", "b")]),
    "bytes.tsv": (b"a\tb\n\xff\tb\n", None, [(2, "not UTF-8")], [("a", "b")]),
    "commas.csv": ("a,b\nc, d,1\n", (0, 1), [(2, "3 columns instead of 2")], [("a", "b")]),
    "quote.csv": (
        'a,b\n"c,d\ne,f\n"g",h\n5" tall,i\n',
        None,
        [(2, "a quote that is not closed")],
        [("a", "b"), ("e", "f"), ("g", "h"), ('5" tall', "i")],
    ),
    "after-quote.csv": ('"a"b,c\nd,e\n', None, [(1, "expected after")], [("d", "e")]),
    "empty-line.csv": ("a,b\n\n,c\n", None, [(2, "an empty line"), (3, "an empty field")], [("a", "b")]),
    "keys.jsonl": (
        '{"t": "a"}\n{"x": "b"}\n{"t": "c", "x": "d"}\n[1]\n{"t":\n\n{"t": null}\n{"t": "\\ud800"}\n{"t": "e"}\n',
        None,
        [
            (2, "no key 't'"),
            (3, "2 columns instead of 1"),
            (4, "not a JSON object"),
            (5, "invalid JSON"),
            (6, "an empty line"),
            (7, "None where a string"),
            (8, "a lone surrogate"),
        ],
        [("a",), ("e",)],
    ),
    "bytes.txt": (b"a\n\xff\nb\n", None, [(2, "not UTF-8")], [("a",), ("b",)]),
}


@pytest.mark.parametrize("name", MESSY)
def test_malformed_lines_are_rejected_or_skipped(tmp_path, caplog, name):
    content, columns, malformed, remaining = MESSY[name]
    file = tmp_path / name
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(
        ValueError, match="`paths` must name files without malformed.*on_error='skip'"
    ) as error:
        read_examples(file, columns)
    with caplog.at_level(logging.WARNING, "keras_transformer"):
        assert read_examples(file, columns, on_error="skip") == remaining
    (record,) = caplog.records
    assert record.name == "keras_transformer"
    assert f"Received: {len(malformed)} malformed" in str(error.value)
    assert record.getMessage().startswith(f"Skipping {len(malformed)} malformed line")
    for message in (str(error.value), record.getMessage()):
        listed = message.splitlines()[1:]
        assert len(listed) == min(3, len(malformed))
        for line, (number, reason) in zip(listed, malformed, strict=False):
            assert line.startswith(f"{file}, line {number}: "), line
            assert reason in line


def test_malformed_lines_of_all_files_are_reported_once(tmp_path, caplog):
    for name in ("a.tsv", "b.tsv"):
        (tmp_path / name).write_text("\n\na\tb\n")
    paths = [tmp_path / "a.tsv", tmp_path / "b.tsv"]
    with pytest.raises(ValueError, match="4 malformed"):
        read_examples(paths)
    assert read_examples(paths, on_error="skip") == [("a", "b")] * 2
    assert [record.getMessage().splitlines()[0] for record in caplog.records] == [
        "Skipping 4 malformed lines of 6 (66.7 %), the first:"
    ]
    assert f"{paths[1]}, line 1" in caplog.text


VERBS = [("gustó", "sí"), ("aburrió", "no")]
OPINIONS = [
    (f"Me {verb} la película, y a {n} amigos también.", label) for n in range(9) for verb, label in VERBS
]
HEADERS = {
    # columns, rows
    "usual names": (("Source", "target"), [("a", "b")]),
    "Spanish names": (("Opinión", "Etiqueta"), [("Buena.", "sí")]),
    "numbers of columns": (("col1", "col2"), [("a", "b")]),
    "two words": (("source_text", "Target texts"), [("a", "b")]),
    "three words": (("Frase en inglés", "Traducción"), [("Hi.", "Hola."), ("Go.", "Ve.")]),
    "languages": (("inglés", "español"), [("Hi.", "Hola."), ("Go.", "Ve.")]),
    "codes of languages": (("en", "de"), [("Hi.", "Hallo."), ("Go.", "Los.")]),
    "numbers": (("Was meinen Sie?", "Sterne"), [("Gut.", "1"), ("Schlecht.", "2.5")]),
    "labels": (("Valoración libre", "polaridad"), OPINIONS),
    "labels with an id": (("n", "mensaje", "y"), [(str(n), *row) for n, row in enumerate(OPINIONS)]),
}
EXAMPLES = {
    "one of a class": (OPINIONS[0], OPINIONS[1:]),
    "of a class of its own": (("No sé qué decir de esta película, la verdad.", "dudoso"), OPINIONS),
    "short": (("Buena", "sí"), OPINIONS),
    "usual names with an article": (("El título", "The title"), [("el perro", "the dog")]),
    "usual names with a full stop": (("Textos.", "Texts."), [("Perros.", "Dogs.")]),
    "a usual name and another": (("text", "b"), [("c", "d")]),
    "no numbers": (("a", "b"), [("1", "2"), ("c", "d")]),
    "a number": (("a", "0"), [("b", "1"), ("c", "1")]),
    "before one number": (("uno", "one"), [("2", "2")]),
    "words": (
        ("es", "is"),
        [("soy", "am"), ("eres", "are"), ("somos", "are"), ("sois", "are"), ("son", "are")],
    ),
    "a class of many": (("play some jazz", "music"), [(f"call {n}", f"call_{n % 50}") for n in range(99)]),
}


def write_csv(path, rows):
    path.write_text("".join(",".join(map(csv_field, row)) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", HEADERS)
def test_an_obvious_header_is_skipped_with_a_warning(tmp_path, caplog, name):
    header, rows = HEADERS[name]
    file = write_csv(tmp_path / "a.csv", [header, *rows])
    with caplog.at_level(logging.WARNING, "keras_transformer"):
        assert read_examples(file) == rows
    record = caplog.records[0]
    assert f"Skipping the first row of {file} as a header: {header[0]!r}" in record.getMessage()
    assert "pass header=False if it is an example" in record.getMessage()
    assert read_examples(file, header=False) == [header, *rows]
    assert read_examples(file, header=True) == rows
    logged = len(caplog.records)
    assert read_examples(file, header) == rows
    assert len(caplog.records) == logged


WITH_IDS = {
    "row numbers": [("0", "a", "x"), ("1", "b", "y"), ("3", "c", "x")],
    "a header": [("id", "text", "label"), ("7c", "a", "x"), ("3f", "b", "y")],
}
WITHOUT_IDS = {
    "labels": [("1", "a"), ("0", "b"), ("0", "c")],
    "texts": [("10 x", "a"), ("11 y", "b"), ("12 z", "c")],
    "one column": [("1",), ("2",), ("3",)],
    "id of groups": [("id", "text"), ("7", "a"), ("7", "b")],
}


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
@pytest.mark.parametrize("name", [*WITH_IDS, *WITHOUT_IDS])
def test_a_first_column_of_ids_without_columns_is_a_warning(tmp_path, caplog, name, suffix):
    rows = (WITH_IDS | WITHOUT_IDS)[name]
    file = write_csv(tmp_path / "a.csv", rows)
    if suffix == "jsonl":
        file = tmp_path / "a.jsonl"
        names = rows[0] if "id" in rows[0] else ["first", "second", "third"][: len(rows[0])]
        objects = [dict(zip(names, row, strict=True)) for row in rows if row is not names]
        file.write_text("".join(f"{json.dumps(each)}\n" for each in objects))
    read_examples(file)
    messages = [message for message in caplog.messages if "looks like ids" in message]
    assert len(messages) == (name in WITH_IDS)
    for message in messages:
        others = re.escape("; pass columns=(1, 2) to leave it out")
        assert re.search(rf"first looks like ids: '.*', '.*', '.*'{others}", message)
    read_examples(file, columns=(0,) if len(rows[0]) == 1 else (0, 1))
    assert len([message for message in caplog.messages if "looks like ids" in message]) == len(messages)


def test_a_first_column_of_ids_before_one_other_has_no_advice(tmp_path, caplog):
    read_examples(write_csv(tmp_path / "a.csv", [("0", "a"), ("1", "b"), ("2", "c")]))
    assert caplog.messages[-1].endswith("although the first looks like ids: '0', 'a'")


@pytest.mark.parametrize(
    ("task", "rows", "columns"),
    [
        ("translate", [("0", "a", "b"), ("1", "c", "d"), ("2", "e", "f")], (1, 2)),
        ("translate", [("e", "a", "b"), ("f", "c", "d")], (0, 1)),
        ("classify", [("0", "a", "b", "x"), ("1", "c", "d", "y"), ("2", "e", "f", "x")], (1, 2, 3)),
        ("classify", [("e", "a", "b", "x"), ("f", "c", "d", "y")], (0, 1)),
    ],
)
def test_a_wrong_number_of_columns_suggests_those_after_ids(tmp_path, task, rows, columns):
    with pytest.raises(ValueError, match=re.escape(f"such as columns={columns}. Received: rows of")):
        TASKS[task](data=[write_csv(tmp_path / "a.csv", rows)]).check_files()


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_ordinary_first_row_is_an_example(tmp_path, caplog, name):
    first, rows = EXAMPLES[name]
    file = write_csv(tmp_path / "a.csv", [first, *rows])
    assert read_examples(file) == [first, *rows]
    assert not caplog.records
    assert read_examples(file, header=True) == rows


def test_headers_of_several_files_give_one_warning(tmp_path, caplog):
    files = [write_csv(tmp_path / name, [("text", "label"), ("a", "b")]) for name in ("a.csv", "b.csv")]
    assert read_examples(files) == [("a", "b")] * 2
    (record,) = caplog.records
    assert f"the first row of {files[0]}, and of 1 other files, as a header" in record.getMessage()


def test_a_header_with_names_is_not_an_example(tmp_path):
    file = write_csv(tmp_path / "a.csv", [("text", "label"), ("a", "b")])
    with pytest.raises(ValueError, match="`header` must not be False with names of columns"):
        read_examples(file, ("text", "label"), header=False)


ENCODINGS = ["cp1252", "latin-1", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8", "utf-8-sig"]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_files_in_unicode_encodings_are_read(tmp_path, encoding, end):
    rows = [("Qué película, ñandú", "sí"), ("x", "y")]
    content = end.join(";".join(map(csv_field, row)) for row in rows).encode(encoding)
    (tmp_path / "a.csv").write_bytes(content)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(content))
    for name in ("a.csv", "a.csv.gz"):
        assert read_examples(tmp_path / name, encoding=encoding) == rows


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("a\tá\n".encode("utf-16"), "utf-16"),
        ("a\tá\n".encode("utf-32"), "utf-32"),
        ("one\ttwo\n".encode("utf-16-le"), "utf-16le"),
        ("one\ttwo\n".encode("utf-16-be"), "utf-16be"),
    ],
)
def test_an_error_names_the_encoding_and_the_conversion(tmp_path, content, found):
    file = tmp_path / "my data.tsv"
    file.write_bytes(content)
    expected = (
        f"must name files in UTF-8. Received: '{file}', in {found.upper()}: pass encoding='{found}', or convert it: "
        f"iconv -f {found.upper()} -t UTF-8 '{file}' > '{tmp_path}/my data-utf8.tsv'"
    )
    with pytest.raises(ValueError, match=re.escape(expected)):
        read_examples(file, on_error="skip")
    subprocess.run(expected.partition("convert it: ")[2], shell=True, check=True)
    assert read_examples(tmp_path / "my data-utf8.tsv") == read_examples(file, encoding=found)
    packed = tmp_path / "b.tsv.gz"
    packed.write_bytes(gzip.compress(content))
    with pytest.raises(
        ValueError, match="or convert it: gunzip -c .*b.tsv.gz | iconv -f UTF.* > .*b-utf8.tsv"
    ):
        read_examples(packed)


def test_errors_show_windows_1252_lines_decoded(tmp_path, caplog):
    file = tmp_path / "a.tsv"
    file.write_bytes("ñandú\tsí\nuno\tdos\n".encode("cp1252"))
    with pytest.raises(
        ValueError, match="1 malformed line of 2 .50 %.; if the file is in Windows-1252"
    ) as error:
        read_examples(file)
    assert "pass encoding='cp1252', or convert it: iconv -f CP1252" in str(error.value)
    assert "line 1: not UTF-8, in Windows-1252: 'ñandú\\tsí'" in str(error.value)
    assert read_examples(file, on_error="skip") == [("uno", "dos")]
    assert "iconv -f CP1252" in caplog.text
    assert read_examples(file, encoding="cp1252") == [("ñandú", "sí"), ("uno", "dos")]


def test_compressed_files_with_the_wrong_suffix_are_rejected(tmp_path):
    (tmp_path / "a.csv").write_bytes(gzip.compress(b"a,b\n"))
    with pytest.raises(
        ValueError, match="compressed by gzip: rename it to 'a.csv.gz', or .*: gunzip -c .*a.csv >"
    ):
        read_examples(tmp_path / "a.csv")
    (tmp_path / "b.csv").write_bytes(b"PK\x03\x04 and more")
    with pytest.raises(ValueError, match="a ZIP archive or an Excel workbook: .* save the table as CSV"):
        read_examples(tmp_path / "b.csv", on_error="skip")


def test_csv_files_may_have_another_delimiter(tmp_path):
    (tmp_path / "a.csv").write_text("a, b|c;d\n'e'|\"f|g\"\n")
    rows = [("a, b", "c;d"), ("'e'", "f|g")]
    assert read_examples(tmp_path / "a.csv", delimiter="|") == rows
    (tmp_path / "a.txt").write_text((tmp_path / "a.csv").read_text())
    assert read_examples(tmp_path / "a.txt", format="csv", delimiter="|") == rows
    with pytest.raises(ValueError, match="`delimiter` must be None except for CSV files"):
        read_examples(tmp_path / "a.txt", delimiter="|")


@pytest.mark.parametrize(
    ("name", "content", "arguments", "error", "message"),
    [
        ("a.tsv", None, {}, FileNotFoundError, "`paths` must name files that exist. Received: .*a.tsv"),
        ("a.tsv", "", {}, ValueError, "`paths` must name non-empty files. Received: .*a.tsv"),
        ("a.tsv", "\n", {"on_error": "skip"}, ValueError, "`paths` must hold at least one example"),
        ("a.dat", "a", {}, ValueError, "must end in .tsv, .csv, .jsonl, .txt, .story .*`format`.*a.dat"),
        ("a.gz", "a", {}, ValueError, "must end in .tsv"),
        ("a.tsv.gz", "a", {}, ValueError, "must name complete gzip files .*a.tsv.gz"),
        ("a.tsv", "a", {"format": "xml"}, ValueError, "`format` must be one of .*Received: format='xml'"),
        (
            "a.tsv",
            "a",
            {"encoding": "nope"},
            ValueError,
            "`encoding` must be a Python text encoding.*'nope'",
        ),
        (
            "a.tsv",
            "a\t\u4e2d",
            {"encoding": "ascii"},
            ValueError,
            "`paths` must name files in the encoding 'ascii'",
        ),
        ("a.csv", "a", {"delimiter": "||"}, ValueError, "`delimiter` must be one character"),
        ("a.csv", "a", {"header": "no"}, ValueError, "`header` must be one of"),
        ("a.tsv", "a", {"on_error": "ignore"}, ValueError, "`on_error` must be one of .*'ignore'"),
        ("a.tsv", "a", {"columns": ()}, ValueError, r"`columns` must be indices from 0, or names.*\(\)"),
        ("a.tsv", "a", {"columns": -1}, ValueError, "`columns` must be indices .*-1"),
        ("a.tsv", "a", {"columns": (True,)}, ValueError, "`columns` must be indices"),
        ("a.csv", "x,y\na,b\n", {"columns": ("x", "z")}, ValueError, r"columns=\('x', 'z'\), .*\['x', 'y'\]"),
        ("a.jsonl", '{"x": "a"}\n', {"columns": "z"}, ValueError, r"columns=\('z',\), where .*has \['x'\]"),
        ("a.jsonl", '{"x": "a"}\n', {"columns": 1}, ValueError, r"`columns` must be columns of the files"),
    ],
)
def test_invalid_arguments_are_rejected(tmp_path, name, content, arguments, error, message):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(error, match=message):
        read_examples(tmp_path / name, **arguments)


def ids(dataset):
    return [batch.numpy().tolist() for inputs, _ in dataset for batch in inputs.values()]


@pytest.mark.slow_variants
@pytest.mark.parametrize("make", [language_modeling, masked_language_modeling])
def test_batches_from_files_equal_those_from_texts(tmp_path, caplog, make):
    tokenizer = text.ByteTokenizer()
    if make is masked_language_modeling:
        tokenizer = text.WordPieceTokenizer.train(["one two three"], 40, min_frequency=1)
    lines, table = tmp_path / "a.txt", tmp_path / "b.csv"
    lines.write_text("one\n\ntwo\n")
    table.write_text("label,text\n1,three\n2,\n")
    expected = ids(make(["one", "two"], tokenizer, shuffle=False))
    assert ids(make(lines, tokenizer, shuffle=False)) == expected
    found = make(["one", "two", table], tokenizer, columns="text", on_error="skip", shuffle=False)
    assert ids(found) == ids(make(["one", "two", "three"], tokenizer, shuffle=False))
    assert "Skipping 1 malformed line of 3 (33.3 %), the first" in caplog.text
    with pytest.raises(ValueError, match="`texts` must name files without malformed lines.*2 malformed"):
        make(table, tokenizer)
    with pytest.raises(TypeError, match=r"`texts` must be an iterable of strings; pass pathlib.Path\(name\)"):
        make(str(lines), tokenizer)
    with pytest.raises(ValueError, match="`columns` must be None unless `texts` names files"):
        make(["one"], tokenizer, columns=0)
    with pytest.raises(ValueError, match="`columns` must have 1 item. Received"):
        make(table, tokenizer, columns=("text", "label"))


@pytest.mark.parametrize("name", ["a.tsv", "a.csv.gz", "a.jsonl"])
@pytest.mark.parametrize(
    "tokenizer",
    [
        text.SentencePieceTokenizer,
        text.WordPieceTokenizer,
        text.BytePairTokenizer,
        text.OpenAIGPTTokenizer,
    ],
)
def test_tokenizers_are_not_trained_on_the_lines_of_tables(tmp_path, tokenizer, name):
    with pytest.raises(
        ValueError, match="`texts` must name text files.*keras_transformer.data.read_examples"
    ):
        tokenizer.train([tmp_path / name], 300)


def test_tokenizers_are_trained_on_text_files(tmp_path):
    plain, packed = tmp_path / "a.text", tmp_path / "a.txt.gz"
    plain.write_bytes(b"\xef\xbb\xbfone two\none\n")
    packed.write_bytes(gzip.compress(b"one two\none\n"))
    expected = text.BytePairTokenizer.train(["one two", "one"], 262)
    for path in (plain, packed):
        assert text.BytePairTokenizer.train(path, 262).model_bytes == expected.model_bytes
    for path, error in ((tmp_path, ValueError), (pathlib.Path("missing.txt"), FileNotFoundError)):
        with pytest.raises(error, match="`texts` must name files"):
            text.BytePairTokenizer.train(path, 262)


def test_split_keeps_pairs_of_equal_sources_together():
    examples = [(f"source {i % 50}", i) for i in range(200)]
    train, held_out = data.split(examples, 0.2, seed=3)
    assert sorted([*train, *held_out]) == sorted(examples)
    assert len({source for source, _ in held_out}) == 10
    assert not {source for source, _ in train} & {source for source, _ in held_out}
    assert (train, held_out) == data.split(examples, 0.2, seed=3)
    shuffled = data.split(examples[::-1], 0.2, seed=3)
    assert [sorted(side) for side in shuffled] == [sorted(train), sorted(held_out)]
    assert held_out != data.split(examples, 0.2, seed=4)[1]
    by_class = data.split(examples, 0.5, key=lambda example: example[1] % 2)
    assert all(len({number % 2 for _, number in side}) == 1 for side in by_class)
    assert [len(side) for side in data.split(["a", "b", "a"], 0.01)] in ([1, 2], [2, 1])
    assert sum(map(len, data.split([(["a"], ["O"]), (["b"], ["O"])], 0.5))) == 2


def test_a_split_holds_out_the_same_fraction_of_each_class():
    examples = [
        (f"{label} {i}", label) for label, count in (("a", 90), ("b", 10), ("c", 1)) for i in range(count)
    ]
    train, held_out = data.split(examples, 0.1, strata=lambda example: example[1])
    assert collections.Counter(label for _, label in held_out) == {"a": 9, "b": 1}
    assert len(train) == 91
    assert data.split(examples[::-1], 0.1, strata=lambda example: example[1])[1] == held_out[::-1]


@pytest.mark.parametrize(
    ("repeated", "others", "warns"),
    [
        (50, [], True),
        (50, [1] * 59, True),  # a text that is repeated
        (12, [1] * 88, True),
        (10, [1] * 90, False),  # a tenth
        (9, [1] * 9, False),  # few examples
        (12, [12] * 7, False),  # questions about each context
        (20, [9] * 10, True),
    ],
)
def test_a_split_warns_of_a_source_that_is_held_out_many_times(repeated, others, warns, caplog):
    examples = [(f"text {i}", row) for i, count in enumerate([repeated, *others]) for row in range(count)]
    for seed in range(1000):  # until only the additional source is not held out
        caplog.clear()
        if data.split([*examples, ("train", 0)], 0.999, seed)[1] == examples:
            break
    message = (
        f"{repeated} of the {len(examples)} held-out examples have the same source, the others have {len(others)} "
        "sources. Metrics depend on it more than on others; remove repetitions from the data. The source: 'text 0'"
    )
    assert caplog.messages == [message] * warns


def test_fields_may_be_long(tmp_path):
    file, field = tmp_path / "a.csv", "a, b" * 50_000
    file.write_text(f'"{field}",1\nx,0\n')
    limit = csv.field_size_limit()
    assert read_examples(file) == [(field, "1"), ("x", "0")]
    assert csv.field_size_limit() == limit


def test_names_of_columns_may_be_decomposed(tmp_path):
    table, objects = tmp_path / "a.csv", tmp_path / "a.jsonl"
    for form, other in (("NFC", "NFD"), ("NFD", "NFC")):
        given, asked = (unicodedata.normalize(each, "reseña") for each in (form, other))
        table.write_text(f"{given},n\nbuena,1\n")
        objects.write_text(json.dumps({given: "buena"}))
        assert read_examples(table, asked) == read_examples(objects, asked) == [("buena",)]
    table.write_text(unicodedata.normalize("NFD", "opinión,categoría\nuna obra,x\nuna cosa,y\n"))
    assert read_examples(table)[0] == ("una obra", "x")


def test_doubled_quotes_in_tsv_files_are_kept_with_a_warning(tmp_path, caplog):
    file = tmp_path / "a.tsv"
    file.write_text('"say ""no"""\tdi que no\n"yes"\tsí\n')
    assert read_examples(file) == [('"say ""no"""', "di que no"), ('"yes"', "sí")]
    assert "Keeping the quotes of 1 field in TSV files" in caplog.text
    assert r"pass format='csv' and delimiter='\t'" in caplog.text
    assert read_examples(file, format="csv", delimiter="\t")[0] == ('say "no"', "di que no")
