import gzip
import json

import pytest

from keras_transformer.data import read_squad

CONTEXT = "Élan is a town. The town is old."


def squad(*entries, context=CONTEXT):
    return {
        "version": "v2.0",
        "data": [{"title": "", "paragraphs": [{"context": context, "qas": list(entries)}]}],
    }


def entry(text="town", start=10, **others):
    return {
        "id": "q1",
        "question": "What is it?",
        "answers": [{"text": text, "answer_start": start}],
        **others,
    }


def written(tmp_path, content):
    file = tmp_path / "a.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def test_questions_of_both_versions_are_read(tmp_path):
    several = [
        {"text": "town", "answer_start": 10},
        {"text": "a town", "answer_start": 8},
        {"text": "town", "answer_start": 10},
    ]
    impossible = {"is_impossible": True, "answers": [], "plausible_answers": several}
    content = squad(entry(), entry(id="q2", answers=several), entry(id="q3", **impossible))
    file = written(tmp_path, content)
    found = read_squad(file)
    assert [question.id for question in found] == ["q1", "q2", "q3"]
    assert all(question.context == CONTEXT and question.question == "What is it?" for question in found)
    assert [question.answers for question in found] == [("town",), ("town", "a town"), ()]
    assert [question.answer_starts for question in found] == [(10,), (10, 8), ()]
    assert [question.answer for question in found] == [("town", 10), ("town", 10), None]
    packed = tmp_path / "b.json.gz"
    packed.write_bytes(gzip.compress(file.read_bytes()))
    assert read_squad([file, packed]) == found * 2


@pytest.mark.parametrize(
    ("malformed", "reason"),
    [
        (entry(start=9), "question q1: the answer 'town' is not at character 9, but at character 10"),
        (entry(start=18), "the answer 'town' is not at character 18, but at character 20"),
        (entry(start=-22), "the answer 'town' is not at character -22, but at character 10"),
        (entry("city"), "the answer 'city' is not at character 10, but not in the context"),
        (entry(" ", 4), "an empty answer"),
        (entry(question=" "), "an empty question"),
        ({"id": "q1", "answers": []}, "no key 'question'"),
        ({"question": "a"}, "question 1: "),
    ],
)
def test_malformed_questions_are_rejected_or_skipped(tmp_path, caplog, malformed, reason):
    malformed = {**malformed, "answers": [{}]} if "id" not in malformed else malformed
    file = written(tmp_path, squad(malformed, entry(id="q2")))
    with pytest.raises(ValueError, match="`paths` must name files without malformed.*1 malformed") as error:
        read_squad(file)
    assert reason in str(error.value)
    assert [question.id for question in read_squad(file, on_error="skip")] == ["q2"]
    assert reason in caplog.text


@pytest.mark.parametrize("content", ["{", "[]", '{"data": 3}', '{"data": [{"paragraphs": [{}]}]}', "3"])
def test_invalid_files_are_rejected(tmp_path, content):
    with pytest.raises(ValueError, match="`paths` must be JSON files in the format of SQuAD.*a.json"):
        read_squad(written(tmp_path, content))


def test_files_without_questions_are_rejected(tmp_path):
    with pytest.raises(ValueError, match="`paths` must hold at least one question"):
        read_squad(written(tmp_path, squad()))
    with pytest.raises(FileNotFoundError, match="`paths` must name files that exist"):
        read_squad(tmp_path / "missing.json")


def test_files_in_another_encoding_are_read(tmp_path):
    file = tmp_path / "a.json"
    file.write_text(json.dumps(squad(entry()), ensure_ascii=False), encoding="cp1252")
    (found,) = read_squad(file, encoding="cp1252")
    assert found.context == CONTEXT
    with pytest.raises(
        ValueError, match="if it is in Windows-1252, pass encoding='cp1252', or convert it: iconv"
    ):
        read_squad(file)
