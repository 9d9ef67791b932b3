import json

import pytest

from keras_transformer import data

STORY = (
    "(CNN) -- It rained.\n\nNobody  was hurt.\n\n@highlight\n\nRain falls\n\n@highlight\r\n\nNobody is hurt\n"
)
SECTION = {
    "section_title": "Background",
    "paragraphs": ["First.", "Second."],
    "subsections": [{"section_title": "", "paragraphs": ["Third."], "subsections": []}],
}
PAIR = ("a long document", "a summary")


def written(path, text):
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_a_story_is_an_article_and_its_highlights(tmp_path):
    written(tmp_path / "b.story", STORY.replace("rained", "snowed"))
    written(tmp_path / "a.story", STORY)
    expected = ("(CNN) -- It rained. Nobody was hurt.", "Rain falls\nNobody is hurt")
    found = data.read_summaries(str(tmp_path / "*.story"))
    assert found == [expected, (expected[0].replace("rained", "snowed"), expected[1])]
    assert data.read_examples(tmp_path / "a.story", columns="highlights") == [expected[1:]]


@pytest.mark.parametrize(
    ("report", "summary"),
    [
        ({"reports": SECTION}, {"summary": ["One.", "Two."]}),
        ({"report": [SECTION]}, {"highlight": [{"section_title": "One.", "paragraphs": "Two."}]}),
    ],
    ids=["CRS", "GAO"],
)
def test_a_report_is_the_text_of_its_sections(tmp_path, report, summary):
    path = written(tmp_path / "a.json", json.dumps({"id": "R1", "title": "no", **summary, **report}))
    assert data.read_summaries(path, format="govreport") == [
        ("Background First. Second. Third.", "One. Two.")
    ]


@pytest.mark.parametrize(
    "names",
    [
        ("article", "highlights"),
        ("report", "summary"),
        ("document", "summary"),
        ("text", "summary"),
        ("dialogue", "summary"),
        ("article", "abstract"),
        ("input", "output"),
    ],
)
def test_columns_of_public_datasets_are_found_by_name(tmp_path, names):
    row = {"id": "1", names[1]: PAIR[1], names[0]: PAIR[0]}
    files = [
        written(tmp_path / "a.jsonl", json.dumps(row) + "\n"),
        written(tmp_path / "a.csv", f"{','.join(row)}\n{','.join(row.values())}\n"),
        written(tmp_path / "a.tsv", "\t".join(row) + "\n" + "\t".join(row.values()) + "\n"),
    ]
    assert data.read_summaries(files) == [PAIR] * 3


def test_other_files_have_two_columns_or_the_chosen_ones(tmp_path):
    pairs = written(tmp_path / "a.tsv", "\t".join(PAIR) + "\n")
    table = written(tmp_path / "b.csv", f"id,body,short\n1,{PAIR[0]},{PAIR[1]}\n")
    assert data.read_summaries(pairs) == [PAIR]
    assert data.read_summaries(table, ("body", "short")) == [PAIR]
    assert data.read_summaries(table, (1, 2), header=True) == [PAIR]
    with pytest.raises(ValueError, match="3 columns instead of 2"):
        data.read_summaries(table)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.story", "An article.\n", "no line @highlight"),
        ("a.story", "@highlight\n\nA sentence\n", "an empty field"),
        ("a.story", b"caf\xe9\n@highlight\nx", "not UTF-8"),
        ("a.json", "{", "invalid JSON"),
        ("a.json", "[1]", "not a JSON object with a report and a summary"),
        ("a.json", '{"report": "x"}', "not a JSON object with a report and a summary"),
    ],
)
def test_files_that_are_not_of_the_format_are_rejected_or_skipped(tmp_path, caplog, name, text, reason):
    written(tmp_path / name, "").write_bytes(text if isinstance(text, bytes) else text.encode())
    options = {"format": "govreport"} if name.endswith("json") else {}
    with pytest.raises(ValueError, match=f"on_error='skip'.*\n.*{name}, line 1: {reason}"):
        data.read_summaries(tmp_path / name, **options)
    good = written(tmp_path / "good.tsv", "\t".join(PAIR) + "\n")
    if not options:
        assert data.read_summaries([tmp_path / name, good], on_error="skip") == [PAIR]
        assert reason in caplog.text


def test_an_empty_file_of_a_document_is_rejected(tmp_path):
    with pytest.raises(ValueError, match="must name non-empty files"):
        data.read_summaries(written(tmp_path / "a.story", "\n"))
