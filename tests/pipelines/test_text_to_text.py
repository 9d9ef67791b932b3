import json
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import keras_transformer_serving as serving
from keras_transformer import generation, pipelines, text
from keras_transformer.export.bundle_writer import config_of
from keras_transformer.pipelines import TextToText
from keras_transformer_serving import files
from tests.serving.in_tensorflow import without_graphs

MANY = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
# Letters of the vocabulary next to arbitrary Unicode characters.
TEXTS = st.text(
    st.one_of(st.sampled_from("unodstrela ¿?ñ▁\u2047<s>/"), st.characters(exclude_categories=["Cs"]))
)


def everything(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


@pytest.fixture(scope="module")
def answers(pipeline, texts):
    return pipeline(texts)


@pytest.fixture(scope="module")
def saved(pipeline, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "pipeline"
    pipeline.save(folder)
    return folder


@pytest.fixture
def copied(saved, tmp_path):
    return pathlib.Path(shutil.copytree(saved, tmp_path / "copied"))


def test_outputs_of_the_test_pipeline_differ_by_row(answers, texts):
    assert len(answers) == len(texts)
    assert all(isinstance(answer, str) for answer in answers)
    assert len(set(answers)) > len(set(texts)) // 2


def test_a_string_input_gives_a_string(pipeline, texts, answers):
    answer = pipeline(texts[0])
    assert isinstance(answer, str)
    assert answer == answers[0]
    assert pipeline("") == ""


def test_an_empty_list_gives_an_empty_list(pipeline):
    assert pipeline([]) == []
    assert pipeline(iter(())) == []
    assert pipeline.generate([]).best.shape == (0, pipeline.max_new_tokens)


def test_any_iterable_of_strings_is_accepted(pipeline, texts, answers):
    assert pipeline(tuple(texts)) == answers
    assert pipeline(one for one in texts) == answers
    assert pipeline(np.array(texts)) == answers


@pytest.mark.slow
@pytest.mark.parametrize("silent", ["", " ", "   ", "☃", "☃☃ ☃", " ☃ ", "\u3042\u3044"])
def test_texts_of_only_spaces_or_unknown_characters_give_an_empty_text(pipeline, silent):
    assert pipeline(silent) == ""
    assert pipeline([silent, "uno dos", silent]) == ["", pipeline("uno dos"), ""]
    assert pipeline.generate([silent]).lengths.tolist() == [[0]]


@pytest.mark.slow
def test_texts_with_some_unknown_characters_are_translated(pipeline):
    out = pipeline.generate(["☃ uno ☃", "a"])
    assert (out.lengths > 0).all()


def test_texts_equal_the_decoded_ids(pipeline, texts, answers):
    out = pipeline.generate(texts)
    decoded = [answer.decode() for answer in pipeline.tokenizer.detokenize(out.best).numpy()]
    assert decoded == answers
    for row, one in enumerate(texts[:4]):
        single = generation.generate(pipeline.model, pipeline.encode([one]), max_new_tokens=10)
        assert out.best[row].tolist() == single.best[0].tolist()
        assert out.lengths[row] == single.lengths[0]
        assert out.scores[row, 0] == pytest.approx(single.scores[0, 0], rel=1e-4)


def test_a_long_text_is_rejected_with_its_row_and_length(pipeline):
    count = len(pipeline.tokenizer.tokenize("o" * 10_000)) + 1
    assert count > 200
    with pytest.raises(ValueError, match=rf"at most 200 tokens.*Received: {count} tokens in texts\[1\]"):
        pipeline(["uno", "o" * 10_000, "dos"])


def test_the_length_limit_is_inclusive_and_counts_the_end_token(pipeline):
    count = len(pipeline.encode(["la casa"])[0])
    limited = TextToText(pipeline.model, pipeline.tokenizer, max_new_tokens=10, max_source_tokens=count)
    assert limited("la casa") == pipeline("la casa")
    with pytest.raises(ValueError, match=rf"{count + 1} tokens in texts\[1\]"):
        limited(["la casa", "la casa☃"])


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"vocabulary_size": 50}, "vocabulary_size"),
        ({"pad_id": 1}, "pad_id"),
        ({"start_id": 5}, "start_id"),
        ({"end_id": 5}, "end_id"),
    ],
)
def test_a_model_that_does_not_match_the_tokenizer_is_rejected(pipeline, random_transformer, options, named):
    options = {"vocabulary_size": pipeline.tokenizer.vocabulary_size, **options}
    with pytest.raises(ValueError, match=f"same {named}.*model.{named}=.*tokenizer.{named}="):
        TextToText(random_transformer(0, **options), pipeline.tokenizer)


@pytest.mark.slow
@MANY
@given(st.lists(TEXTS, min_size=1, max_size=4))
def test_ids_are_equal_in_python_in_a_graph_and_in_serving(pipeline, inputs):
    config = config_of(pipeline)
    graphs = without_graphs(config)
    served = serving.TextToText(graphs, config, serving.tokenizer_of(pipeline.tokenizer.model_bytes, config))
    ids = pipeline.encode(inputs).numpy()
    as_bytes = tf.constant([one.encode() for one in inputs])
    np.testing.assert_array_equal(pipeline.encode(as_bytes).numpy(), ids)
    assert served.encode(inputs) == [[int(id_) for id_ in row if id_ != pipeline.model.pad_id] for row in ids]


def texts_of(pipeline, ids):
    """Return the texts that the pipeline and serving decode from ids."""
    served = serving.tokenizer_of(pipeline.tokenizer.model_bytes, config_of(pipeline))
    return pipeline.tokenizer.detokenize([ids]).numpy()[0].decode(), served.detokenize(ids)


@pytest.mark.slow
@MANY
@given(st.lists(st.integers(0, 1000), min_size=1, max_size=12))
def test_pipeline_and_serving_decode_ids_equally(pipeline, ids):
    known = [0, *range(2, pipeline.tokenizer.vocabulary_size)]
    ids = [known[number % len(known)] for number in ids]
    decoded, served = texts_of(pipeline, ids)
    assert decoded == served


@pytest.mark.parametrize("ids", [[1], [1, 7], [2, 1], [7, 1], [7, 1, 1, 4, 8], [4, 1], [1, 4]], ids=repr)
def test_pipeline_and_serving_decode_the_unknown_id_equally(pipeline, ids):
    decoded, served = texts_of(pipeline, ids)
    assert decoded == served


def test_pipeline_and_serving_skip_special_tokens(pipeline):
    skipping = TextToText(pipeline.model, pipeline.tokenizer, skip_special_tokens=True)
    assert skipping.generation_config()["skip_special_tokens"]
    assert "skip_special_tokens" not in pipeline.generation_config()
    config, ids = config_of(skipping), [7, pipeline.tokenizer.unknown_id, 8]
    graphs = without_graphs(config)
    served = serving.TextToText(graphs, config, serving.tokenizer_of(pipeline.tokenizer.model_bytes, config))
    expected = pipeline.decode([[7, 8]]).numpy()[0].decode()
    assert skipping.decode([ids]).numpy()[0].decode() == served.decode(ids) == expected
    assert pipeline.decode([ids]).numpy()[0].decode() != expected


def test_saving_a_loaded_pipeline_writes_equal_files(saved, tmp_path):
    pipelines.load(saved).save(tmp_path / "again")
    again, once = everything(tmp_path / "again"), everything(saved)
    assert again.keys() == once.keys()
    for name in ("generation_config.json", "tokenizer/sentencepiece.model", "tokenizer/tokenizer.json"):
        assert again[name] == once[name]


@pytest.mark.slow
def test_a_folder_may_be_moved(saved, tmp_path, texts, answers):
    moved = shutil.copytree(saved, tmp_path / "elsewhere" / "ñ o")
    assert pipelines.load(str(moved))(texts[:3]) == answers[:3]


def test_saving_to_an_existing_folder_raises_an_error_and_leaves_it_unchanged(pipeline, copied):
    before = everything(copied)
    with pytest.raises(FileExistsError, match="copied"):
        pipeline.save(copied)
    assert everything(copied) == before
    assert [path.name for path in copied.parent.iterdir()] == ["copied"]


def test_overwrite_replaces_a_pipeline(pipeline, copied):
    (copied / "stray").write_text("")
    other = TextToText(pipeline.model, pipeline.tokenizer, max_new_tokens=3)
    other.save(copied, overwrite=True)
    assert not (copied / "stray").exists()
    assert pipelines.load(copied).max_new_tokens == 3


def test_overwrite_replaces_only_pipelines(pipeline, tmp_path):
    """`overwrite` may replace a pipeline, but not a folder such as a home folder."""
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("years of work")
    with pytest.raises((FileExistsError, ValueError), match="thesis"):
        pipeline.save(tmp_path / "thesis", overwrite=True)
    assert (tmp_path / "thesis" / "chapter.txt").read_text() == "years of work"


def fail(*_, **__):
    raise OSError("disk full")


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_failed_save_leaves_no_files(pipeline, copied, monkeypatch, overwrite):
    folder = copied if overwrite else copied.parent / "a" / "new"
    before = everything(copied.parent)
    monkeypatch.setattr(pipeline.tokenizer, "save", fail)
    with pytest.raises(OSError, match="disk full"):
        pipeline.save(folder, overwrite=overwrite)
    assert everything(copied.parent) == before


def test_loading_a_run_folder_loads_its_pipeline(saved, tmp_path):
    shutil.copytree(saved, tmp_path / "run" / "pipeline")
    (tmp_path / "run" / "report.json").write_text("{}")
    assert pipelines.load(tmp_path / "run").generation_config() == pipelines.load(saved).generation_config()
    with pytest.raises(FileNotFoundError, match="`folder` must be a saved pipeline, or a training run"):
        pipelines.load(tmp_path)


@pytest.mark.parametrize("folder", ["absent", "empty", "other", "json", "list"])
def test_loading_a_folder_without_a_pipeline_names_it(tmp_path, folder):
    path = tmp_path / folder
    if folder != "absent":
        path.mkdir()
    if folder == "other":
        (path / "notes.txt").write_text("")
    if folder in ("json", "list"):
        files.write_json(path / "config.json", {"model_type": "bert"} if folder == "json" else [])
    with pytest.raises(FileNotFoundError, match=f"`folder` must .*{folder}"):
        pipelines.load(path)


@pytest.mark.parametrize(
    "config", [{"pipeline": ["TextToText"]}, {"pipeline": {}}, {"pipeline": None}, {"pipeline": "textToText"}]
)
def test_a_config_of_an_unknown_pipeline_is_rejected(copied, config):
    files.write_json(copied / "config.json", config)
    with pytest.raises(FileNotFoundError, match="`folder` must"):
        pipelines.load(copied)


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "generation_config.json",
        "model.keras",
        "tokenizer/sentencepiece.model",
        "tokenizer/tokenizer.json",
    ],
)
@pytest.mark.parametrize("damage", ["flipped", "cut", "emptied", "removed"])
def test_errors_name_a_damaged_file(copied, name, damage):
    path = copied / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    if damage == "removed":
        path.unlink()
    else:
        path.write_bytes({"flipped": content, "cut": content[: len(content) // 3], "emptied": b""}[damage])
    error = FileNotFoundError if damage == "removed" else ValueError
    with pytest.raises(error, match=path.name.replace(".", r"\.")):
        pipelines.load(copied)


def test_errors_name_a_config_without_the_model_digest(copied):
    files.write_json(copied / "config.json", {"pipeline": "TextToText"})
    with pytest.raises(ValueError, match=r"config\.json"):
        pipelines.load(copied)


@pytest.mark.parametrize(
    "content",
    [
        [],
        {"max_tokens": 5},
        {"max_new_tokens": "8"},
        {"max_new_tokens": None},
        {"generation": "nucleus"},
        "greedy",
    ],
    ids=repr,
)
def test_invalid_settings_raise_a_value_error(copied, content):
    (copied / "generation_config.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"generation_config\.json|max_new_tokens|sampler"):
        pipelines.load(copied)


def test_the_tokenizer_of_another_pipeline_is_rejected(copied, sentence_pairs):
    other = text.SentencePieceTokenizer.train(
        [target for _, target in sentence_pairs], 60, byte_fallback=False
    )
    other.save(copied / "tokenizer")
    with pytest.raises(ValueError, match="same vocabulary_size|tokenizer"):
        pipelines.load(copied)


def test_another_tokenizer_of_the_same_size_is_rejected(copied, pipeline, sentence_pairs):
    size = pipeline.tokenizer.vocabulary_size
    other = text.SentencePieceTokenizer.train(
        [side[::-1] for pair in sentence_pairs for side in pair] * 2, size, byte_fallback=False
    )
    if other.vocabulary_size != size:
        pytest.skip("no tokenizer of that size")
    assert other.sha256 != pipeline.tokenizer.sha256
    other.save(copied / "tokenizer")
    with pytest.raises(ValueError, match="tokenizer"):
        pipelines.load(copied)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method:UserWarning")
def test_a_loaded_quantized_pipeline_gives_equal_outputs(pipeline, random_transformer, texts, tmp_path):
    model = random_transformer(1, vocabulary_size=pipeline.tokenizer.vocabulary_size)
    model.quantize("int8")
    quantized = TextToText(model, pipeline.tokenizer, max_new_tokens=5)
    quantized.save(tmp_path / "quantized")
    loaded = pipelines.load(tmp_path / "quantized")
    assert any(variable.dtype == "int8" for variable in loaded.model.variables)
    assert loaded(texts[:4]) == quantized(texts[:4])
