"""The recipe of a recognizer of speech: its options, word error rate, and a run of the command line."""

import json
import random

import pytest

import keras_transformer_serving as serving
from keras_transformer import layers, models, pipelines, recipes, text
from keras_transformer.recipes import scores
from keras_transformer_cli import commands
from tests.audio import TONES, spoken, wav

SIZES = {"layers": 1, "heads": 2, "model_dim": 16}
FLAGS = ["--layers", "1", "--heads", "2", "--no-jit-compile", "--dropout", "0", "--patience", "99"]


def table(folder, count):
    """Write a table of the paths of WAV files and their transcripts."""
    drawn = random.Random(0)
    rows = []
    for number in range(count):
        words = " ".join(drawn.choices(list(TONES), k=drawn.randint(1, 3)))
        (folder / f"{number}.wav").write_bytes(wav(spoken(words, number)))
        rows.append(f"{number}.wav\t{words}\n")
    (folder / "train.tsv").write_text("path\tsentence\n" + "".join(rows))
    return folder / "train.tsv"


def test_the_word_error_rate_counts_replaced_inserted_and_deleted_words():
    def rate(reference, answer):
        return scores.word_error_rate([reference], [answer])

    assert rate("a b c", "a b c") == 0
    assert rate("a b c", "a x c") == rate("a b c", "a c") == rate("a b c", "a b b c") == pytest.approx(1 / 3)
    assert rate("a b", "") == 1
    assert rate("a", "b c d") == 3
    assert rate("a b c d", "b c d a") == 0.5  # the first is deleted, another one inserted at the end
    assert scores.word_error_rate(["a", "b c d"], ["x", "b c d"]) == 0.25  # of all words, not of all texts


def test_the_command_line_names_malformed_lines_before_it_trains(tmp_path, capsys):
    path = table(tmp_path, 3)
    path.write_text(path.read_text() + "missing.wav\tlow\n")
    command = ["train", "speech", "--data", str(path), "--output", str(tmp_path / "run")]
    assert commands.main([*command, *FLAGS]) == 2
    error = capsys.readouterr().err
    assert "pass --on-error skip to skip them" in error
    assert "line 5: No such file or directory: " in error
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The folders of a pipeline for 8000 samples a second, and of a Whisper."""
    folder, bytes_ = tmp_path_factory.mktemp("speech"), text.ByteTokenizer()
    sizes = {"num_layers": 1, "num_heads": 2, "model_dim": 16, "hidden_dim": 16}
    features = layers.LogMelSpectrogram(20, 8000, 200, 80)
    model = models.CTC(models.SpeechEncoder(**sizes, features=features), bytes_.vocabulary_size)
    pipelines.SpeechToText(model, bytes_, max_seconds=2).save(folder / "ctc")
    ids = {name: getattr(bytes_, name) for name in ("pad_id", "start_id", "end_id")}
    whisper = models.Whisper(bytes_.vocabulary_size, **sizes, max_source_length=10, max_length=12, **ids)
    pipelines.SpeechToText(whisper, bytes_, max_new_tokens=8).save(folder / "whisper")
    return folder


EXAMPLES = [(spoken("low"), "low"), (spoken("high"), "high")]


def test_a_saved_recognizer_is_fine_tuned_with_its_features_and_duration(saved):
    recipe = recipes.Speech(EXAMPLES, from_=saved / "ctc", sample_rate=8000)
    pipeline = recipe.untrained()
    assert (pipeline.model.features.num_mels, pipeline.max_seconds) == (20, 2)
    (inputs, labels), *_ = recipe.batches(EXAMPLES, pipeline, shuffle=False)
    assert inputs["lengths"].numpy().tolist() == [6400, 6400]
    assert pipeline.tokenizer.detokenize(labels).numpy().tolist() == [b"low", b"high"]
    with pytest.raises(ValueError, match="`sample_rate` must be that of the model in `from_`, 8000"):
        recipes.Speech(EXAMPLES, from_=saved / "ctc").untrained()
    with pytest.raises(
        ValueError, match=r"`from_` must be a pipeline of a `models.CTC`. Received: a Whisper"
    ):
        recipes.Speech(EXAMPLES, from_=saved / "whisper").untrained()


def test_a_new_model_has_windows_of_its_rate_and_rejected_audio_has_no_words(saved):
    del saved
    recipe = recipes.Speech(EXAMPLES, **SIZES, sample_rate=8000, max_seconds=1.0)
    pipeline = recipe.untrained()
    features = pipeline.model.features
    assert (features.sample_rate, features.window_length, features.hop_length) == (8000, 200, 80)
    pipeline = type("Pipeline", (), {"__call__": lambda self, audio, **_: ["low", ValueError("long")]})()
    metrics = recipe.evaluate(pipeline, EXAMPLES)
    assert metrics["word_error_rate"] == 0.5
    assert metrics["examples"] == [
        {"input": "audio 1", "reference": "high", "answer": ""},
        {"input": "audio 0", "reference": "low", "answer": "low"},
    ]


def test_invalid_options_are_rejected():
    for options, message in (
        ({"max_seconds": 0.0}, "`max_seconds` must be positive and finite"),
        ({"sample_rate": 0}, "`sample_rate` must be a positive integer"),
        ({"tokenizer": "byte-bpe"}, "`tokenizer` must be a folder or one of"),
    ):
        with pytest.raises(ValueError, match=message):
            recipes.Speech(EXAMPLES, **options).tokenizer_kind()


@pytest.mark.slow
def test_a_run_learns_tones_and_its_export_recognizes_the_same(tmp_path):
    path, run, bundle = table(tmp_path, 120), tmp_path / "run", tmp_path / "bundle"
    command = ["train", "speech", "--data", str(path), "--output", str(run), "--model-dim", "32"]
    command += ["--epochs", "40", "--learning-rate", "0.01", "--tokenizer", "wordpiece"]
    assert commands.main([*command, *FLAGS]) == 0
    report = json.loads((run / "report.json").read_text())
    assert report["pipeline"] == "SpeechToText"
    assert report["counts"] == {"train": 108, "validation": 12, "test": 0}
    assert report["metrics"].keys() == {"word_error_rate", "num_examples"}
    assert report["metrics"]["word_error_rate"] < 0.2, report["examples"]
    assert report["examples"][0]["input"].endswith(".wav")
    assert commands.main(["export", str(run), str(bundle)]) == 0
    recordings = [path.with_name(f"{number}.wav") for number in range(8)]
    assert serving.load(bundle)(recordings) == pipelines.load(run)(recordings)
