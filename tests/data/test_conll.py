import pytest

from keras_transformer.data import read_conll

NER = """-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O


Peter NNP B-NP B-PER
"""
UNIVERSAL = """# sent_id = 1
# text = Vámonos, # 10 000
1-2\tVámonos\t_\t_\t_\t_\t_\t_\t_\t_
1\tVamos\tir\tVERB\t_\t_\t0\troot\t_\t_
2\tnos\tnosotros\tPRON\t_\t_\t1\tobj\t_\t_
2.1\tx\tx\tX\t_\t_\t_\t_\t_\t_
3\t#\t#\tSYM\t_\t_\t1\tx\t_\t_
4\t10 000\t10000\tNUM\t_\t_\t1\tx\t_\t_
"""
TWEETS = "#Lakers O\n# O\nKobe B-person\n"


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_sentences_are_separated_by_empty_lines(tmp_path, end):
    file = tmp_path / "train.txt"
    file.write_bytes(("\ufeff" + NER.replace("\n", end)).encode())
    expected = [(("EU", "rejects"), ("B-ORG", "O")), (("Peter",), ("B-PER",))]
    assert read_conll(file) == expected
    assert read_conll([file, str(file)], (0, 1))[2:][0].tags == ("NNP", "VBZ")
    file.write_text(NER.strip().replace(" ", "\t"))
    assert read_conll(file) == expected


def test_comment_lines_are_ignored_and_words_beginning_with_a_hash_are_kept(tmp_path):
    file = tmp_path / "a.conllu"
    file.write_text(UNIVERSAL, "utf-8")
    ((words, tags),) = read_conll(file, (1, 3))
    assert words == ("Vamos", "nos", "#", "10 000")
    assert tags == ("VERB", "PRON", "SYM", "NUM")
    file.write_text(TWEETS)
    assert read_conll(file) == [(("#Lakers", "#", "Kobe"), ("O", "O", "B-person"))]


def test_sentences_with_malformed_lines_are_rejected_or_skipped(tmp_path, caplog):
    file = tmp_path / "a.txt"
    file.write_bytes(b"a O\nb\n\nc O\n\nd O x\n\ne\xff O\nf O\n\ng O\n")
    with pytest.raises(ValueError, match="Received: 3 malformed") as error:
        read_conll(file)
    assert str(error.value).splitlines()[1:] == [
        f"{file}, line 2: 1 column instead of at least 2: 'b'",
        f"{file}, line 6: 3 columns instead of 2: 'd O x'",
        f"{file}, line 8: not UTF-8, in Windows-1252: 'eÿ O'",
    ]
    assert read_conll(file, on_error="skip") == [(("c",), ("O",)), (("g",), ("O",))]
    assert "Skipping 3 malformed lines of 7 (42.9 %)" in caplog.text


def test_invalid_arguments_are_rejected(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("\n\n")
    with pytest.raises(ValueError, match="`paths` must hold at least one sentence"):
        read_conll(file)
    with pytest.raises(ValueError, match="`columns` must be two integers.*columns=\\('word', 'tag'\\)"):
        read_conll(file, ("word", "tag"))
    with pytest.raises(FileNotFoundError, match="`paths` must name files that exist"):
        read_conll(tmp_path / "missing")


def test_files_in_another_encoding_are_read(tmp_path):
    file = tmp_path / "train.txt"
    file.write_text("Ñandú B-ANIMAL\n\nvuela O\n", encoding="cp1252")
    expected = [(("Ñandú",), ("B-ANIMAL",)), (("vuela",), ("O",))]
    assert read_conll(file, encoding="cp1252") == expected
    with pytest.raises(ValueError, match="1 malformed line of 2 .50 %.; if the file is in Windows-1252"):
        read_conll(file)
    assert read_conll(file, on_error="skip") == expected[1:]


@pytest.mark.parametrize("ends", ["\r\r\r\r\r", "\r\r\r\r\n", "\n\r\r\r\n", "\r\n\n\r\n"])
def test_lines_may_end_in_carriage_returns(tmp_path, ends):
    file = tmp_path / "a.conll"
    lines = ["EU B-ORG", "rejects O", "", "Peter B-PER", ""]
    file.write_bytes("".join(map("".join, zip(lines, ends, strict=False))).encode())
    assert read_conll(file) == [(("EU", "rejects"), ("B-ORG", "O")), (("Peter",), ("B-PER",))]
