"""Long texts raise an error, or are split into parts whose outputs are joined."""

import numpy as np
import pytest

import keras_transformer_serving as serving
from keras_transformer import pipelines
from keras_transformer.export.bundle_writer import config_of
from keras_transformer.generation import Beam, Sample
from keras_transformer.pipelines import TextToText
from keras_transformer_serving.generation import Generated
from keras_transformer_serving.pipelines.generation_steps import Output
from tests.serving.in_tensorflow import without_graphs

LONG = (
    "  Uno dos tres. La casa azul!\r\n\r\n\t* * *\r\nEl perro, el gato y la casa. " + "Uno dos " * 20 + "\n"
)
TEXTS = ["la casa", LONG, "", "Uno.\nDos.", "uno dos. Tres."]


@pytest.fixture(scope="module")
def splitting(pipeline):
    """Return a pipeline that splits texts of more than 24 tokens."""
    return TextToText(
        pipeline.model, pipeline.tokenizer, max_new_tokens=10, max_source_tokens=24, long_texts="split"
    )


@pytest.fixture
def calls(monkeypatch):
    """Record the texts, prefixes and limits of calls; pipelines return the texts."""
    found = []

    def copied(self, text, row, index, number, count, marked):
        yield from ()
        source = yield from self.source_of("uno", row, index, number)
        found.append((text, index, number, bool(source.prefix_ids), source.options["max_new_tokens"]))
        return Output([text], Generated(np.zeros((1, 0), int), np.zeros(1, int), np.zeros(1)))

    monkeypatch.setattr(TextToText, "_part", copied)
    return found


def test_copied_parts_concatenate_to_the_text(splitting, calls):
    assert splitting(TEXTS, prefixes=["a", "b", "c", "d", "e"], max_new_tokens=[1, 2, 3, 4, 5]) == TEXTS
    long = splitting.split_texts([LONG])[0].parts
    parts = [(TEXTS[0], 0, 0), *((part, 1, number) for number, part in enumerate(long))]
    parts += [("", 2, 0), ("Uno.", 3, 0), ("Dos.", 3, 1), (TEXTS[4], 4, 0)]
    assert sorted(calls, key=lambda call: call[1:]) == [
        (part, index, number, number == 0, index + 1) for part, index, number in parts
    ]


@pytest.mark.slow
def test_the_output_of_a_long_text_joins_the_outputs_of_its_parts(splitting):
    outputs = splitting(TEXTS)
    splits = splitting.split_texts(TEXTS)
    assert [len(split.parts) for split in splits][0::2] == [1, 1, 1]
    assert len(splits[1].parts) > 5
    for split, output in zip(splits, outputs, strict=True):
        assert output == split.join([splitting(part, long_texts="refuse") for part in split.parts])
    assert outputs[1] == splitting(LONG) == splitting(LONG, batch_size=2)
    assert outputs[1].startswith("  ")
    assert "\r\n\r\n\t* * *\r\n" in outputs[1]
    assert splitting([]) == []


@pytest.mark.slow
def test_texts_that_fit_are_not_split(splitting, pipeline):
    texts = ["la casa", "", "uno dos. Tres."]
    for sampler in ("greedy", Sample(seed=3)):
        one, other = (each.with_settings(sampler) for each in (splitting, pipeline))
        assert one([*texts, LONG])[:3] == other(texts) == other([*texts, LONG], long_texts="split")[:3]


@pytest.mark.slow
def test_the_first_part_gets_the_prefix_and_every_part_the_limit(splitting):
    split = splitting.split_texts([LONG])[0]
    outputs = splitting(["uno", LONG], prefixes=["the", "one"], max_new_tokens=[3, 5])
    first, *others = split.parts
    parts = [splitting(first, prefixes="one", max_new_tokens=5), *splitting(others, max_new_tokens=5)]
    assert outputs == [splitting("uno", prefixes="the", max_new_tokens=3), split.join(parts)]
    with pytest.raises(ValueError, match="`max_new_tokens` must be one number, or one for each of 2 texts"):
        splitting(["uno", LONG], max_new_tokens=[1, 2, 3])
    with pytest.raises(ValueError, match="`prefixes` must have one item for each of 2 texts. Received: 1"):
        splitting(["uno", LONG], prefixes=["one"])


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["greedy", Sample(seed=3)], ids=str)
def test_a_stream_of_a_long_text_equals_a_call(splitting, sampler):
    pipeline = splitting.with_settings(sampler)
    expected = pipeline(LONG, prefixes="one", max_new_tokens=4)
    assert "".join(pipeline.stream(LONG, "one", max_new_tokens=4)) == expected


def test_long_texts_are_rejected_for_ids_scores_and_streams(splitting, pipeline):
    message = r"`texts` must have at most 24 tokens each \(max_source_tokens\).* tokens in texts\[1\]"
    for call in (splitting.generate, lambda texts: splitting(texts, long_texts="refuse")):
        with pytest.raises(ValueError, match=message):
            call(["uno", LONG])
    with pytest.raises(ValueError, match=message.replace("1", "0")):
        splitting.stream(LONG, long_texts="refuse")
    with pytest.raises(
        ValueError, match="at most 200 tokens each .*, or long_texts='split', or truncate=True"
    ):
        pipeline("o" * 1000)
    with pytest.raises(ValueError, match=r"`texts` must be text without lone surrogates.*texts\[1\]"):
        splitting(["uno", LONG + "\ud800"])


@pytest.mark.slow
def test_an_error_names_the_row_of_its_text(splitting):
    texts = ["uno", None, LONG + "\ud800", b"\xff", LONG]
    prefixes = ["the", "", "", "", None]
    outputs = splitting(texts, prefixes=prefixes, errors="return")
    assert outputs[0] == splitting("uno", prefixes="the")
    assert [type(output) for output in outputs[1:]] == [TypeError, ValueError, ValueError, TypeError]
    assert [f"[{row}]" in str(output) for row, output in enumerate(outputs[1:], start=1)] == [True] * 4
    assert "prefixes[4]" in str(outputs[4])


def test_long_texts_is_saved_and_exported(splitting, pipeline, tmp_path):
    assert pipeline.long_texts == "refuse"
    assert splitting.with_settings(Beam(2)).long_texts == "split"
    splitting.save(tmp_path / "saved")
    assert pipelines.load(tmp_path / "saved").settings() == splitting.settings()
    assert config_of(splitting)["long_texts"] == "split"
    for call in (
        lambda: splitting("uno", long_texts="window"),
        lambda: TextToText(pipeline.model, pipeline.tokenizer, long_texts="window"),
    ):
        with pytest.raises(
            ValueError, match=r"`long_texts` must be one of \('refuse', 'split'\)\. Received: long"
        ):
            call()


def test_serving_splits_texts_as_the_pipeline_does(splitting):
    config = config_of(splitting)
    tokenizer = serving.tokenizer_of(splitting.tokenizer.model_bytes, config)
    served = serving.TextToText(without_graphs(config), config, tokenizer)
    assert served.long_texts == "split"
    texts = [*TEXTS, "☃" * 99 + ".", "o" * 99, "☃ ☃\n☃"]
    assert served.split_texts(texts) == splitting.split_texts(texts)
