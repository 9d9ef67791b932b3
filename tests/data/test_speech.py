"""Audio with transcripts: tables with messy files, and batches."""

import json
import logging

import numpy as np
import pytest

from keras_transformer import data, text
from tests.audio import spoken, wav

BYTES = text.ByteTokenizer()
TEXTS = ["low", "middle high", "high low low"]
AUDIO = [spoken(each) for each in TEXTS]


def recordings(folder, rows, audio=AUDIO):
    """Write the WAV files of a table, and the table of its rows."""
    (folder / "clips").mkdir()
    for number, samples in enumerate(audio):
        (folder / "clips" / f"{number}.wav").write_bytes(wav(samples))
    (folder / "train.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    return folder / "train.tsv"


def test_tables_of_each_form_have_paths_relative_to_their_folder(tmp_path):
    rows = [(f"clips/{number}.wav", each) for number, each in enumerate(TEXTS)]
    path = recordings(tmp_path, rows)
    expected = [(tmp_path / name, each) for name, each in rows]
    assert data.read_transcripts(path) == expected
    (tmp_path / "voices.tsv").write_text(
        "client_id\tpath\tsentence\tage\n" + "".join(f"x\t{name}\t{each}\t\n" for name, each in rows)
    )
    assert data.read_transcripts(tmp_path / "voices.tsv") == expected
    (tmp_path / "metadata.csv").write_text(
        "file_name,transcription\n" + "".join(f"{name},{each}\n" for name, each in rows)
    )
    assert data.read_transcripts(tmp_path / "metadata.csv") == expected
    lines = [{"audio_filepath": str(tmp_path / name), "duration": 0.1, "text": each} for name, each in rows]
    (tmp_path / "manifest.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert data.read_transcripts(tmp_path / "manifest.jsonl") == expected


def test_messy_tables_have_one_error_and_are_skipped_by_line(tmp_path, caplog):
    bad = {
        "missing.wav": (None, "No such file or directory: "),
        "rate.wav": (
            wav(AUDIO[0], rate=8000),
            ", or their rate as `sample_rate`",
        ),
        "stereo.wav": (
            wav(np.repeat(AUDIO[0], 2), channels=2),
            "must have one channel. Received: 2 channels",
        ),
        "empty.wav": (b"", "must be a WAV file of integer samples. Received: "),
        "silent.wav": (wav([]), "must have samples. Received: none in "),
    }
    names = [*(f"clips/{name}" for name in bad), "clips/0.wav", "clips/1.wav", "clips/2.wav"]
    rows = [(name, "low") for name in names]
    rows[-2] = ("clips/1.wav", " ")  # an empty transcript
    path = recordings(tmp_path, rows)
    for name, (content, _) in bad.items():
        if content is not None:
            (tmp_path / "clips" / name).write_bytes(content)
    with pytest.raises(ValueError, match="6 malformed lines of 8") as raised:
        data.read_transcripts(path)
    for number, (_, message) in zip((1, 2, 3), bad.values(), strict=False):
        assert f"line {number}: " in str(raised.value)
        assert message in str(raised.value)
    with caplog.at_level(logging.WARNING, "keras_transformer"):
        found = data.read_transcripts(path, on_error="skip")
    assert found == [(tmp_path / "clips" / "0.wav", "low"), (tmp_path / "clips" / "2.wav", "low")]
    for number, (name, (_, message)) in enumerate(bad.items(), 1):
        single = tmp_path / f"{name}.tsv"
        single.write_text(f"clips/{name}\tlow\n")
        with pytest.raises(ValueError, match="1 malformed line of 1") as raised:
            data.read_transcripts(single)
        assert message in str(raised.value), number


def batch_rows(dataset):
    """Return the rows of all batches: audio without padding, and text."""
    rows = []
    for inputs, labels in dataset:
        for audio, length, ids in zip(inputs["audio"], inputs["lengths"], labels, strict=True):
            assert not audio[int(length) :].numpy().any()
            rows.append((audio[: int(length)].numpy(), BYTES.detokenize(ids).numpy().decode()))
    return rows


def test_batches_have_the_audio_and_the_ids_of_its_text(tmp_path):
    recordings(tmp_path, [])
    paths = [tmp_path / "clips" / f"{number}.wav" for number in range(3)]
    for shuffle in (False, True):
        dataset = data.speech_recognition(paths, TEXTS, BYTES, 2, shuffle=shuffle)
        rows = batch_rows(dataset)
        assert len(dataset) == len(list(dataset))
        assert sorted(each for _, each in rows) == sorted(TEXTS)
        for audio, each in rows:
            np.testing.assert_allclose(audio, AUDIO[TEXTS.index(each)], atol=1e-4)
    of_arrays = batch_rows(data.speech_recognition(AUDIO, TEXTS, BYTES, 2, shuffle=False))
    assert [each for _, each in of_arrays] == [
        each for _, each in batch_rows(data.speech_recognition(paths, TEXTS, BYTES, 2, shuffle=False))
    ]


def test_files_of_another_rate_are_resampled(tmp_path):
    recordings(tmp_path, [])
    path = tmp_path / "clips" / "0.wav"
    path.write_bytes(wav(AUDIO[0][::2], rate=8000))
    (tmp_path / "train.tsv").write_text("clips/0.wav\tlow\n")
    ((name, _),) = data.read_transcripts(tmp_path / "train.tsv", resample=True)
    with pytest.raises(
        ValueError, match=r"`audio\[0\]` is invalid: `audio` must have 16000 samples a second"
    ):
        data.speech_recognition([name], ["low"], BYTES)
    ((audio, _),) = batch_rows(data.speech_recognition([name], ["low"], BYTES, resample=True))
    np.testing.assert_allclose(audio, AUDIO[0], atol=0.05)  # without the noise above 4000 Hz


def test_workers_read_different_rows_and_resumed_epochs_the_same():
    audio, texts = AUDIO * 4, TEXTS * 4
    whole = data.speech_recognition(audio, texts, BYTES, 4, length_buckets=1)
    shards = [
        batch_rows(data.speech_recognition(audio, texts, BYTES, 2, length_buckets=1, shard=(index, 2)))
        for index in range(2)
    ]
    assert sorted(each for rows in shards for _, each in rows) == sorted(texts)
    whole.epochs.start_at(1)
    first = [each for _, each in batch_rows(whole)]
    whole.epochs.start_at(1)
    assert [each for _, each in batch_rows(whole)] == first
    other = data.speech_recognition([0.5 * each for each in audio], texts, BYTES, 4, length_buckets=1)
    assert other.epochs.fingerprint != whole.epochs.fingerprint


def test_examples_that_are_too_long_are_dropped_with_a_warning(caplog):
    def kept(**options):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "keras_transformer"):
            rows = batch_rows(data.speech_recognition(AUDIO, TEXTS, BYTES, 3, shuffle=False, **options))
        return [each for _, each in rows], caplog.text

    assert kept(max_seconds=1) == (TEXTS[:2], kept(max_seconds=1)[1])
    assert "1 of 3 with audio over 1 seconds or texts over 512 tokens" in kept(max_seconds=1)[1]
    assert kept(max_length=11)[0] == TEXTS[:2]
    # "middle" needs a prediction between its two d's.
    needed = {len(audio): count for audio, count in zip(AUDIO, (3, 12, 12), strict=True)}
    lengths = np.vectorize(needed.get)
    assert kept(output_lengths=lengths) == (TEXTS, "")
    needed[len(AUDIO[1])] = 11
    assert kept(output_lengths=lengths)[0] == [TEXTS[0], TEXTS[2]]
    assert "1 of 3 with texts that are too long for their audio" in kept(output_lengths=lengths)[1]
    with pytest.raises(
        ValueError, match="`audio` must have an example that is short enough. Received: 3 of 3"
    ):
        data.speech_recognition(AUDIO, TEXTS, BYTES, max_length=2)


@pytest.mark.parametrize(
    ("audio", "texts", "message"),
    [
        ([AUDIO[0]], [""], r"`texts` must be strings that are not empty. Received: texts\[0\]=''"),
        ([AUDIO[0]], [None], r"`texts` must be strings that are not empty. Received: texts\[0\]=None"),
        (AUDIO, TEXTS[:2], "`audio` and `texts` must have the same length"),
        ([AUDIO[0] * np.nan], ["a"], r"`audio\[0\]` must have finite samples. Received: NaN or infinite"),
        (
            [AUDIO[0], AUDIO[0][:0]],
            ["a", "b"],
            r"`audio\[1\]` must have finite samples. Received: no samples",
        ),
        (
            [np.zeros((9, 2), "float32")],
            ["a"],
            r"`audio\[0\]` is invalid: `audio` must be floats \(N,\), of one",
        ),
        (
            [wav(AUDIO[0], rate=8000)],
            ["a"],
            r"`audio\[0\]` is invalid: `audio` must have 16000 samples a second",
        ),
    ],
)
def test_invalid_examples_are_named(audio, texts, message):
    with pytest.raises(ValueError, match=message):
        data.speech_recognition(audio, texts, BYTES)


def test_a_file_that_changes_raises_an_error(tmp_path):
    recordings(tmp_path, [])
    dataset = data.speech_recognition([tmp_path / "clips" / "0.wav"], ["low"], BYTES)
    (tmp_path / "clips" / "0.wav").write_bytes(wav(AUDIO[1]))
    with pytest.raises(Exception, match="Files must not change while they are read"):
        list(dataset)
