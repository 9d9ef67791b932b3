"""Speech recognition: files, bad input, padding, and requests to a server."""

import base64
import functools
import itertools
import json
import pathlib
import sys
import urllib.error
import urllib.request

import numpy as np
import pytest

import keras_transformer_serving as serving
from keras_transformer import export, generation, interop, models, pipelines, text
from keras_transformer.pipelines.babble import babble
from keras_transformer_cli import commands, prediction
from keras_transformer_serving.audio import read_wav
from keras_transformer_serving.pipelines.speech_to_text import SpeechTask
from keras_transformer_serving.pipelines.speech_windows import joined, windows
from keras_transformer_serving.server import Limits, create_app, forward, tensorflow_serving
from tests.audio import RATE, wav
from tests.laws.cases import normal, numbers, randomise
from tests.laws.pipelines import (
    AUDIO,
    BYTES,
    LINES,
    SIZES,
    recognize_speech,
    transcribe,
    transcribe_languages,
)

SOUNDS = [
    scale * normal(1, 3000 - 200 * row, seed=row)[0] for row, scale in enumerate((0.001, 3, 0.1, 1, 0, 0.01))
]


@pytest.fixture(scope="module")
def recognize():
    return recognize_speech()


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_wav_files_of_each_width_are_read(width, tmp_path):
    samples = np.clip(AUDIO[0], -1, 1)
    (tmp_path / "a.wav").write_bytes(wav(samples, width=width))
    for source in (wav(samples, width=width), tmp_path / "a.wav"):
        found = read_wav(source, RATE)
        assert found.dtype == "float32"
        np.testing.assert_allclose(found, samples, atol=2.0 ** (1 - 8 * width))


def test_files_and_arrays_have_the_same_text(recognize, tmp_path):
    samples = read_wav(wav(AUDIO[0]), RATE)
    (tmp_path / "a.wav").write_bytes(wav(AUDIO[0]))
    expected = recognize([samples, AUDIO[1, :1000]])
    assert recognize([tmp_path / "a.wav", AUDIO[1, :1000]]) == expected
    assert recognize(str(tmp_path / "a.wav")) == recognize(samples.tolist()) == expected[0]
    assert recognize([]) == []


def test_texts_equal_the_outputs_of_the_model(recognize):
    rows = [AUDIO[0], AUDIO[1, :1000], AUDIO[2, :1777]]
    ids = [recognize.model.greedy_ids(recognize.model({"audio": row[None]})) for row in rows]
    assert recognize(rows) == [BYTES.detokenize(each).numpy()[0].decode(errors="replace") for each in ids]


def test_batches_of_an_export_equal_single_rows(recognize):
    """Audio of similar length is in one batch, in the order of the call."""
    served, sizes = recognize.served(), []
    run = served.engine.run
    served.engine.run = lambda feed: sizes.append(feed["audio"].shape) or run(feed)
    rows = [AUDIO[0], AUDIO[1, :700], AUDIO[2, :1777], AUDIO[0, :900], np.zeros(3), AUDIO[1]]
    assert set(forward.signatures(served)) == {"forward", "serving_default"}
    found = served(rows, batch_size=2, errors="return")
    assert sizes == [(2, 900), (2, 3000), (1, 3000)]
    assert str(found.pop(4)).startswith("`audio` must have 160 to 480000 samples")
    assert found == [served(row) for row in [*rows[:4], rows[5]]] == recognize([*rows[:4], rows[5]])


@pytest.fixture(scope="module")
def multilingual():
    """A recognizer of languages between which it decides by the audio, and the languages of `SOUNDS`."""
    model = transcribe_languages().model
    padded = np.stack([np.pad(each, (0, 3200 - len(each))) for each in SOUNDS])
    inputs = {"audio": padded, "target_ids": np.full((len(SOUNDS), 1), model.start_id)}
    logits = numbers(model(inputs))[:, 0, 100:250]
    first = int(logits.std(axis=0).argmax())
    others = np.argsort(np.abs(np.median(logits - logits[:, [first]], axis=0)))
    ids = sorted([first, *others[others != first][:2].tolist()])
    languages = {name: 100 + id_ for name, id_ in zip(("en", "es", "fr"), ids, strict=True)}
    expected = [list(languages)[best] for best in logits[:, ids].argmax(axis=1)]
    assert len({*expected}) > 1
    return transcribe_languages(languages=languages, max_new_tokens=3), expected


def greedy_text(recognize, audio, *names):
    """Return the text after the ids of a language and a task, by calls of the model."""
    known = {**recognize.languages, **recognize.tasks}
    model, ids = recognize.model, [recognize.model.start_id, *map(known.get, names), 70]
    start = len(ids)
    for _ in range(recognize.max_new_tokens):
        logits = numbers(model({"audio": audio[None], "target_ids": np.array([ids])}))[0, -1].copy()
        logits[[model.pad_id, model.start_id]] = -np.inf
        ids.append(int(logits.argmax()))
        if ids[-1] == model.end_id:
            break
    return recognize.text_methods.methods["detokenize"]([ids[start:]])[0]


def test_languages_and_tasks_are_the_ids_before_a_text(multilingual):
    recognize, detected = multilingual
    tasks, languages = ["translate", "transcribe"] * 3, ["es", "", "fr", "", "en", "fr"]
    found = [given or language for given, language in zip(languages, detected, strict=True)]
    rows = zip(SOUNDS, found, tasks, strict=True)
    expected = [(greedy_text(recognize, *each), each[1], None) for each in rows]
    assert recognize.transcripts(SOUNDS, 4, language=languages, task=tasks) == expected
    assert recognize.served().transcripts(SOUNDS, 4, language=languages, task=tasks) == expected
    assert recognize(SOUNDS, language=languages, task=tasks) == [text for text, *_ in expected]
    assert [each.language for each in recognize.transcripts(SOUNDS)] == detected
    named = transcribe_languages(language="fr", task="translate")
    start = named.model.start_id
    np.testing.assert_array_equal(named._prompt({})["decoder_input_ids"], [start, 79, 91, 70])
    np.testing.assert_array_equal(named._prompt({"language": ""})["decoder_input_ids"], [start, -1, 91, 70])


def test_requests_have_languages_and_tasks(multilingual):
    recognize, _ = multilingual
    served = recognize.served()
    signature = forward.signatures(served)["serving_default"]
    columns = {"audio": SOUNDS[:3], "language": ["es", "", "xx"], "task": ["translate"]}
    rows = signature.rows(columns, lambda *_: "inputs")
    answers = signature.compute(rows, {}, forward.Rows(served, 4), 4)
    expected = recognize.transcripts(SOUNDS[:2], language=["es", ""], task="translate")
    assert answers[:2] == [{"text": each.text, "language": each.language, "error": ""} for each in expected]
    assert answers[2]["error"] == "`language` must be one of en, es, fr. Received: xx"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")  # translations, in the client
def test_openai_s_client_transcribes_and_translates_files(multilingual, recognize):
    openai = pytest.importorskip("openai")
    from served_exports import listening

    many, _ = multilingual
    long = wav(np.clip(np.concatenate(SOUNDS), -1, 1))  # several windows
    samples = read_wav(long, RATE)
    app = create_app({"whisper": many.served(), "ctc": recognize.served()})
    with (
        listening(app) as address,
        openai.OpenAI(base_url=f"{address}/v1", api_key="any", max_retries=0) as client,
    ):
        create = functools.partial(client.audio.transcriptions.create, model="whisper", file=("a.wav", long))
        translate = functools.partial(client.audio.translations.create, model="whisper", file=("a.wav", long))
        expected = many.transcripts([samples], long_audio="split")[0]
        assert create().text == expected.text
        assert create(response_format="text", temperature=0.0) == expected.text + "\n"
        verbose = create(response_format="verbose_json", language="ES")
        spanish = many(samples, long_audio="split", language="es")
        assert (verbose.text, verbose.language) == (spanish, "spanish")
        assert verbose.duration == len(samples) / RATE
        assert translate().text == many(samples, long_audio="split", task="translate")
        short = wav(np.clip(SOUNDS[1], -1, 1))
        found = create(model="ctc", file=("a.wav", short)).text
        assert found == recognize(read_wav(short, RATE))
        for call, options, message in (
            (create, {"response_format": "srt"}, "`response_format` must be json or text or verbose_json"),
            (create, {"response_format": "vtt"}, "as the model's graph has no times of segments"),
            (create, {"timestamp_granularities": ["word"]}, "no times of segments"),
            (create, {"temperature": 0.5}, "`temperature` must be 0, as the model's graph"),
            (create, {"prompt": "Hi"}, "`prompt` must be"),
            (create, {"language": "xx"}, "`language` must be en or es or fr"),
            (create, {"stream": True}, "`stream` must be false"),
            (create, {"extra_body": {"seed": 1}}, "The fields of a request must be of model, language"),
            (create, {"file": ("a.mp3", b"ID3")}, "`file` must be a WAV file.*a.mp3"),
            (create, {"file": ("a.wav", wav(np.zeros(3)))}, "`file` must have 160 to"),
            (create, {"model": "ctc", "response_format": "verbose_json"}, "`response_format` must be json"),
            (create, {"model": "ctc", "language": "es"}, "as the model has no languages"),
            (translate, {"model": "ctc"}, "`model` must be one that can translate"),
        ):
            with pytest.raises(openai.BadRequestError, match=message):
                call(**options)
        with pytest.raises(openai.NotFoundError):
            create(model="none")
        with urllib.request.urlopen(f"{address}/openapi.json") as answer:
            paths = json.load(answer)["paths"]
    body = paths["/v1/audio/transcriptions"]["post"]["requestBody"]["content"]["multipart/form-data"]
    assert {*body["schema"]["required"]} == {"model", "file"}
    models_ = paths["/v1/audio/translations"]["post"]["requestBody"]["content"]["multipart/form-data"]
    assert models_["schema"]["properties"]["model"]["enum"] == ["whisper"]


def posted(address, route, *parts):
    """Return the status and the JSON answer to a form of parts: a name, a value, and the filename of a file."""
    lines = []
    for name, value, *filename in parts:
        head = f'Content-Disposition: form-data; name="{name}"' + "".join(
            f'; filename="{each}"' for each in filename
        )
        lines += [b"--b", head.encode(), b"", value if isinstance(value, bytes) else value.encode()]
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    body = b"\r\n".join([*lines, b"--b--", b""])
    try:
        with urllib.request.urlopen(
            urllib.request.Request(f"{address}/v1/audio/{route}", body, headers)
        ) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)["error"]


def test_forms_of_audio_are_read_by_their_fields(multilingual, recognize):
    from served_exports import listening

    many, _ = multilingual
    content = wav(SOUNDS[4])  # is detected as Spanish
    file, verbose = ("file", content, "a.wav"), ("response_format", "verbose_json")
    names = ["1", "nan", "true"]
    app = create_app(
        {**dict.fromkeys(names, many.served()), "ctc": recognize.served()}, Limits(max_bytes=2**14)
    )
    with listening(app) as address:
        for name in names:  # and not numbers and booleans
            given = [("model", name), file, ("temperature", "0.0"), ("stream", "false")]
            status, answer = posted(address, "transcriptions", *given)
            assert status == 200, answer
        model = ("model", "1")
        for route, language in (("transcriptions", "spanish"), ("translations", "english")):
            _, answer = posted(address, route, model, file, verbose)
            assert answer["language"] == language  # of the text
        for parts, message in (
            ([model, file, model], "`model` must be given once. Received: several"),
            ([model, file, file], "`file` must be given once. Received: several"),
            (
                [model, ("file", "text")],
                "`file` must be a file part of the form, with a filename. Received: 'text'",
            ),
            (
                [model, ("audio", content, "a.wav")],
                "`audio` must be a field without a filename. Received: 'a.wav'",
            ),
            ([model], "`file` must be a WAV file in a form of several parts. Received: None"),
            ([model, file, ("temperature", "1")], "`temperature` must be 0, as"),
            ([model, file, ("stream", "true")], "`stream` must be false, as"),
            (
                [model, file, *[("timestamp_granularities[]", each) for each in ("word", "")]],
                "no times of segments",
            ),
            (
                [("model", "ctc"), file, verbose],
                "must be json or text, as the model has no languages, and no times",
            ),
        ):
            status, error = posted(address, "transcriptions", *parts)
            assert (status, message in error["message"]) == (400, True), error
        status, error = posted(address, "transcriptions", model, ("file", content * 4, "a.wav"))
        assert status == 413
        assert "at most 16384 bytes (`--max-bytes` of the server)" in error["message"]


def test_long_audio_is_the_joined_text_of_its_windows(multilingual):
    recognize, _ = multilingual
    served, long = recognize.served(), np.concatenate([*SOUNDS, *SOUNDS])  # 30,000 samples, 14 windows
    options = {"language": "es", "long_audio": "split"}
    calls = []
    found = served.transcripts([SOUNDS[0], long], 4, **options, progress=lambda *counts: calls.append(counts))
    assert calls == [(4, 15), (8, 15), (12, 15), (15, 15)]
    assert found == recognize.transcripts([SOUNDS[0], long], **options)
    assert found[0] == recognize.transcripts(SOUNDS[:1], language="es")[0]
    prompt = recognize._prompt({"language": "es"})["decoder_input_ids"][None]
    ids = [
        served.run(audio=each[None], decoder_input_ids=prompt)["ids"][0].tolist()
        for each in windows(long, 3200)
    ]
    special = (recognize.model.pad_id, recognize.model.end_id)
    ids = joined([[id_ for id_ in row if id_ not in special] for row in ids])
    assert found[1].text == recognize.text_methods.methods["detokenize"]([ids])[0]
    message = r"`audio` must have 160 to 3200 samples \(0.2 seconds\), or long_audio='split'. Received: 30000"
    with pytest.raises(ValueError, match=message):
        recognize(long)
    for option, message in (
        ("cut", "must be one of .'refuse', 'split', 'sequential'.. Received: long_audio='cut'"),
        ("sequential", "needs a model with timestamps, and an export that is not older"),
    ):
        with pytest.raises(ValueError, match=f"`long_audio` {message}"):
            recognize(long, long_audio=option)
    signature = forward.signatures(served)["serving_default"]
    columns = {"audio": [long] * 3, "long_audio": ["split", "refuse", "cut"], "language": ["es"]}
    rows = signature.rows(columns, lambda *_: "inputs")
    answers = signature.compute(rows, {}, forward.Rows(served, 4), 4)
    assert answers[0] == {"text": found[1].text, "language": found[1].language, "error": ""}
    assert "or long_audio='split'" in answers[1]["error"]
    assert answers[2]["error"].startswith("`long_audio` must be one of")


def test_windows_overlap_by_a_third_and_have_all_samples():
    for count in (1, 599, 600, 601, 1000, 1001, 2345):
        found = windows(np.arange(count), 600)
        assert all(len(each) <= 600 for each in found)
        assert found[0][0] == 0
        assert found[-1][-1] == count - 1
        for left, right in itertools.pairwise(found):
            np.testing.assert_array_equal(left[-200:], right[:200])
            assert len(right) > 200
    assert joined([[1, 2, 9, 4, 5], [2, 3, 4, 5, 6]]) == [1, 2, 9, 4, 5, 6]
    assert joined([[1, 2], [3, 4]]) == [1, 2, 3, 4]
    assert joined([[], [], [7]]) == [7]


def test_languages_and_tasks_that_a_model_lacks_are_rejected(recognize, multilingual):
    for name, noun in {"language": "languages", "task": "tasks"}.items():
        with pytest.raises(ValueError, match=f"`{name}` must be None, as the model has no {noun}"):
            recognize(AUDIO[0], **{name: "es"})
    with pytest.raises(ValueError, match=r"`language` must be one of \['en', 'es', 'fr'\]"):
        transcribe_languages(language="xx")
    for options, message in (
        ({"language": "xx"}, "`language` must be one of en, es, fr. Received: xx in language[0]"),
        ({"task": "sing"}, "`task` must be one of transcribe, translate. Received: sing in task[0]"),
    ):
        (error,) = multilingual[0](AUDIO[:1], errors="return", **options)
        assert str(error) == message


def test_options_of_the_command_line(multilingual, recognize, tmp_path, capsys, monkeypatch):
    pipeline, _ = multilingual
    monkeypatch.setattr(prediction, "load", lambda folder: predictors[folder])
    make = functools.partial(prediction.Predictor, "SpeechToText", columns=(1,), reads="audio", text=str)
    predictors = {"several": make(answer=pipeline), "one": make(answer=recognize)}
    predictors["texts"] = prediction.Predictor("TextToText", str, (1,))
    path, long = str(tmp_path / "a.wav"), np.concatenate([*SOUNDS, *SOUNDS])
    pathlib.Path(path).write_bytes(wav(np.clip(long, -1, 1)))
    command = ["predict", "several", path, "--format", "jsonl", "--language", "es", "--task", "translate"]
    assert commands.main([*command, "--long-audio", "split"]) == 0
    out, err = capsys.readouterr()
    expected = pipeline(path, language="es", task="translate", long_audio="split")
    assert json.loads(out)["answer"] == expected
    assert "14 of 14 windows" in err
    assert commands.main([*command, "--long-audio", "split", "--quiet"]) == 0
    assert "windows" not in capsys.readouterr().err
    for options, message in {
        (
            "several",
        ): "`audio` must have 160 to 3200 samples (0.2 seconds), or --long-audio split. Received: 30000",
        ("several", "--language", "xx"): "`--language` must be one of en, es, fr. Received: xx",
        ("one", "--task", "translate"): "`--task` needs a multilingual model. Received: translate",
        ("several", "--source-language", "es"): "`--source-language` needs a translation model",
        (
            "texts",
            "--long-audio",
            "split",
        ): "`--long-audio` must not be given for texts. Received: a TextToText",
    }.items():
        assert commands.main(["predict", options[0], path, *options[1:]]) == 2
        assert message in capsys.readouterr().err


def test_the_command_line_reads_paths(recognize, tmp_path, capsys):
    recognize.save(tmp_path / "it")
    paths = [str(tmp_path / name) for name in ("a.wav", "b.wav")]
    for path, samples in zip(paths, AUDIO, strict=False):
        pathlib.Path(path).write_bytes(wav(samples))
    assert commands.main(["predict", str(tmp_path / "it"), *paths, "--format", "jsonl"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows == [
        {"input": path, "answer": answer} for path, answer in zip(paths, recognize(paths), strict=True)
    ]


BAD = {
    "another rate": (
        wav(AUDIO[0], rate=8000),
        "must have 16000 samples a second, or resample=True. Received: 8000 in",
    ),
    "stereo file": (wav(AUDIO[0], channels=2), "must have one channel. Received: 2 channels in"),
    "empty file": (b"", "must be a WAV file of integer samples. Received: 0 bytes, an incomplete file"),
    "file without samples": (wav([]), "must have samples. Received: none in"),
    "text file": (b"turn left", "must be a WAV file of integer samples. Received: 9 bytes"),
    "stereo": (
        np.zeros((2, 900), "float32"),
        "must be floats (N,), of one channel. Received: an array of shape",
    ),
    "integers": (np.zeros(900, "int16"), "must be floats, usually from -1 to 1. Received: int16 samples"),
    "no array": (None, "must be floats (N,) or the path of a WAV file. Received: a NoneType"),
    "no samples": (
        np.zeros(0, "float32"),
        "must have 160 to 480000 samples (30.0 seconds). Received: 0 samples",
    ),
    "too long": (
        np.zeros(480001, "float32"),
        "must have 160 to 480000 samples (30.0 seconds). Received: 480001",
    ),
    "not finite": (np.full(900, np.nan, "float32"), "must be finite. Received: NaN or infinite samples"),
    "infinite": (np.full(900, np.inf, "float32"), "must be finite. Received: NaN or infinite samples"),
}


def test_bad_audio_has_one_clear_error_and_does_not_change_other_texts(recognize):
    rows = [AUDIO[0], *(value for value, _ in BAD.values()), AUDIO[1]]
    found = recognize(rows, errors="return", batch_size=4)
    assert [found[0], found[-1]] == recognize([AUDIO[0], AUDIO[1]])
    for index, (name, (_, message)) in enumerate(BAD.items(), 1):
        error = found[index]
        assert isinstance(error, ValueError), name
        assert str(error).startswith(f"`audio` {message}"), name
        assert str(error).endswith(f" in audio[{index}]"), name
        with pytest.raises(ValueError, match=f"in audio.{index}."):
            recognize([AUDIO[0]] * index + [rows[index]])
    with pytest.raises(FileNotFoundError, match=r"missing\.wav"):
        recognize("missing.wav")


def test_audio_of_examples_is_not_too_long(recognize):
    short = pipelines.SpeechToText(recognize.model, BYTES, max_seconds=0.25)
    for audio, lengths in (example.values() for example in short.example_inputs()["serving_default"]):
        assert not any(short.preprocess(audio, lengths).error.numpy())


def test_models_and_tokenizers_that_do_not_fit_raise_errors():
    frames = models.CTC(models.SpeechEncoder(**SIZES, num_features=5), BYTES.vocabulary_size)
    audio = models.CTC(models.SpeechEncoder(**SIZES), 7)
    with pytest.raises(TypeError, match="`model` must read audio rather than frames"):
        pipelines.SpeechToText(frames, BYTES)
    with pytest.raises(ValueError, match="must have the same vocabulary_size"):
        pipelines.SpeechToText(audio, BYTES)
    with pytest.raises(ValueError, match="`max_seconds` must be positive"):
        pipelines.SpeechToText(recognize_speech().model, BYTES, max_seconds=0)
    with pytest.raises(TypeError, match="`model` must be a recognizer of speech"):
        pipelines.SpeechToText(models.GAT(5, 3), BYTES)


def test_a_request_has_numbers_or_the_base64_of_a_wav_file(recognize):
    audio, _ = SpeechTask.columns(recognize.config)["serving_default"]
    samples = read_wav(wav(AUDIO[0]), RATE)
    np.testing.assert_array_equal(audio.convert(wav(AUDIO[0]), "audio"), samples)
    np.testing.assert_allclose(audio.convert(samples.tolist(), "audio"), samples, atol=1e-7)
    halved = wav(sweep(8000), rate=8000)
    np.testing.assert_array_equal(audio.convert(halved, "audio"), read_wav(halved, RATE, resample=True))


def sweep(rate, seconds=1.0, highest=3600):
    """Return tones from 20 Hz to the highest frequency, at a sample rate."""
    time = np.arange(int(seconds * rate)) / rate
    return 0.5 * np.sin(2 * np.pi * (20 * time + (highest - 20) * time**2 / (2 * seconds)))


@pytest.mark.parametrize("rate", [8000, 11025, 12001, 44100, 48000])
def test_resampled_audio_equals_audio_sampled_at_the_other_rate(rate):
    highest = 0.9 * min(rate, RATE) / 2
    found = read_wav(wav(sweep(rate, highest=highest), rate, width=4), RATE, resample=True)
    assert found.dtype == "float32"
    expected = sweep(RATE, highest=highest)
    assert abs(len(found) - len(expected)) <= 1
    inside = slice(200, RATE - 200)  # a filter sees zeros beyond the ends
    np.testing.assert_allclose(found[inside], expected[inside], atol=2e-4)
    if rate > RATE:  # no alias of frequencies that the rate does not have
        tone = np.sin(2 * np.pi * 9000 * np.arange(rate) / rate)
        assert abs(read_wav(wav(tone, rate), RATE, resample=True)[inside]).max() < 1e-4


def test_resampling_is_an_option_of_calls_and_of_the_command_line(recognize, tmp_path, capsys):
    recognize.save(tmp_path / "it")
    path = str(tmp_path / "a.wav")
    pathlib.Path(path).write_bytes(wav(sweep(8000), 8000))
    expected = recognize(read_wav(path, RATE, resample=True))
    assert recognize(path, resample=True) == expected
    assert commands.main(["predict", str(tmp_path / "it"), path, "--resample", "--format", "jsonl"]) == 0
    assert json.loads(capsys.readouterr().out)["answer"] == expected
    assert commands.main(["predict", str(tmp_path / "it"), path]) == 2
    assert "must have 16000 samples a second, or --resample. Received: 8000 in" in capsys.readouterr().err


def test_resampling_needs_scipy_and_a_possible_rate(recognize, monkeypatch):
    for rate in (1, 999, 384_001):
        with pytest.raises(ValueError, match=f"1000 to 384000 samples a second .* Received: {rate}"):
            read_wav(wav(AUDIO[0], rate), RATE, resample=True)
    monkeypatch.setitem(sys.modules, "scipy", None)
    content = wav(AUDIO[0], 8000)
    with pytest.raises(ImportError, match=r"needs SciPy, the extra \[audio\]: pip install scipy"):
        read_wav(content, RATE, resample=True)
    audio, _ = SpeechTask.columns(recognize.config)["serving_default"]
    with pytest.raises(ValueError, match="needs SciPy"):  # an answer of the server
        audio.convert(content, "audio")


@pytest.mark.slow
def test_whisper_texts_equal_generation():
    recognize, rows = transcribe(), [AUDIO[0], AUDIO[1, :1500]]
    padded = np.stack([rows[0], np.pad(rows[1], (0, 1500))])
    prefix = np.tile([[70, 71]], (2, 1))
    found = generation.generate(
        recognize.model, padded, generation.Beam(2), max_new_tokens=6, prefix_ids=prefix
    )
    assert recognize(rows) == [text.decode() for text in BYTES.detokenize(found.best).numpy()]
    with pytest.raises(ValueError, match=r"must have 160 to 3200 samples \(0\.2 seconds\)"):
        recognize(np.zeros(3201, "float32"))
    with pytest.raises(ValueError, match="`generation` must not sample for speech"):
        pipelines.SpeechToText(recognize.model, BYTES, generation.Sample())


@pytest.mark.slow
def test_the_folder_of_a_whisper_determines_tokenizer_prefix_and_settings(tmp_path):
    special = {"unknown": "<|endoftext|>", "end": "<|endoftext|>", "start": "<|startoftranscript|>"}
    trained = text.BytePairTokenizer.train(LINES, 280, special_tokens={**special, "en": "<|en|>"})
    ids = {piece: id_ for id_, piece in enumerate(trained.vocabulary)}
    end, start, english = (ids[token] for token in ("<|endoftext|>", "<|startoftranscript|>", "<|en|>"))
    sizes = {**SIZES, "max_source_length": 10, "max_length": 12, "num_mels": 80}
    model = randomise(models.Whisper(len(ids), **sizes, pad_id=end, start_id=start, end_id=end), 1)
    folder = interop.to_hugging_face(model, tmp_path / "whisper")
    (folder / "vocab.json").write_text(json.dumps(ids))
    merges = ["#version: 0.2", *(" ".join(pair) for pair in trained.merges)]
    (folder / "merges.txt").write_text("\n".join(merges))
    settings = {"max_length": 12, "suppress_tokens": [40, 50], "lang_to_id": {"<|en|>": english}}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    recognize = pipelines.from_hugging_face(folder)
    assert recognize.settings()["languages"] == {"en": english}
    assert recognize.settings()["language"] is None
    assert recognize.settings()["max_new_tokens"] == 10
    assert recognize.tokenizer.start_id == start
    tokenizer = trained.with_arguments(special_tokens={**special, "pad": "<|endoftext|>", "en": "<|en|>"})
    constraints = [generation.BannedWords([[40], [50]])]
    options = {"constraints": constraints, "prefix_ids": [english], "max_new_tokens": 10}
    assert recognize.transcripts(AUDIO[:1])[0].language == "en"
    assert recognize(AUDIO[0]) == pipelines.SpeechToText(model, tokenizer, **options)(AUDIO[0])


@pytest.mark.slow
def test_every_precision_of_ctc_is_compared_by_its_logits(tmp_path):
    export.onnx(recognize_speech(), tmp_path / "it", precisions=("float32", "float16", "int8"))
    rows = serving.verify(tmp_path / "it")["onnx"]["precisions"]
    assert 0 < rows["float16"]["logit_error"] < rows["int8"]["logit_error"] < 0.1
    served = serving.load(tmp_path / "it", precision="int8")
    logits = served.run(audio=AUDIO[:1], lengths=[1500])["logits"][0]
    frames = int(recognize_speech().model.encoder.output_lengths(1500))
    assert logits[:frames].all()
    assert not logits[frames:].any()
    assert isinstance(served(AUDIO[0]), str)


@pytest.mark.slow
def test_every_precision_of_a_multilingual_model_is_loaded(multilingual, tmp_path):
    recognize, _ = multilingual
    precisions = ("float32", "float16", "int8")
    export.onnx(recognize, tmp_path / "it", precisions=precisions)
    languages = ["es", "", "fr", "", "en", "fr"]
    expected = recognize.transcripts(SOUNDS, language=languages, task="translate")
    for precision in precisions:
        served = serving.load(tmp_path / "it", precision=precision)
        found = served.transcripts(SOUNDS, 4, language=languages, task="translate")
        assert [each.language for each in found[::2]] == languages[::2]
        if precision == "float32":
            assert found == expected


def test_the_examples_of_an_export_have_the_pitch_of_a_voice():
    """Noise has none of the channels that are large in speech, to which int8 is fitted."""
    sounds = np.stack([babble(16000, 16000, seed) for seed in range(3)])
    assert sounds.dtype == np.float32
    assert np.abs(sounds).max() <= 0.3
    power = np.abs(np.fft.rfft(sounds[:, :12000].reshape(-1, 2000))) ** 2  # sounds of 125 ms
    echo = np.fft.irfft(power)
    echo = (echo[:, 16000 // 240 : 16000 // 80] / (echo[:, :1] + 1e-9)).max(axis=1)
    assert (echo > 0.3).mean() > 0.3
    noise = np.random.default_rng(0).normal(size=(18, 2000))
    echo = np.fft.irfft(np.abs(np.fft.rfft(noise)) ** 2)
    assert (echo[:, 66:200] / echo[:, :1]).max() < 0.3


@pytest.mark.slow
@pytest.mark.parametrize(
    "make", [recognize_speech, transcribe, transcribe_languages], ids=["CTC", "Whisper", "multilingual"]
)
def test_the_export_and_its_server_answer_as_the_pipeline(make, tmp_path):
    pipeline = make()
    pipeline.save(tmp_path / "saved")
    rows = [AUDIO[0], AUDIO[1, :1500], wav(AUDIO[2]), np.full(900, np.nan, "float32")]
    expected = pipeline(rows, errors="return")
    assert pipelines.load(tmp_path / "saved")(rows[:3]) == expected[:3]
    export.saved_model(pipeline, tmp_path / "it")
    export.onnx(pipeline, tmp_path / "it")
    served = serving.load(tmp_path / "it")
    found = served(rows, errors="return")
    assert found[:3] == expected[:3]
    assert str(found[3]) == str(expected[3])
    signatures = forward.signatures(served)
    audio = [{"b64": base64.b64encode(rows[2]).decode()}, rows[1].tolist(), [0.0] * 9]
    name, columns, _ = tensorflow_serving.parse(
        {"instances": [{"audio": each} for each in audio]}, signatures
    )
    answers = signatures[name].compute(columns, {}, forward.Rows(served, 4), 4)
    assert [answer["text"] for answer in answers] == [*expected[2:0:-1], ""]
    assert "must have 160 to" in answers[2]["error"]
