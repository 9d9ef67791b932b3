"""Timestamps of speech: segments, windows that follow each other, the text before them, and subtitles."""

import json
import urllib.request
from types import SimpleNamespace

import numpy as np
import pytest
from keras import ops

import keras_transformer_serving as serving
from keras_transformer import export, generation, pipelines
from keras_transformer.generation.constraints import History, is_allowed
from keras_transformer_serving.audio import read_wav
from keras_transformer_serving.pipelines.speech_segments import Segment, Span, spans, subtitles
from keras_transformer_serving.server import create_app, forward
from tests.audio import RATE, wav
from tests.laws.cases import numbers
from tests.laws.pipelines import BYTES, transcribe, transcribe_languages
from tests.pipelines.test_speech_to_text import SOUNDS, posted

NO_TIMES = BYTES.vocabulary_size - 12  # and timestamps 0 to 10 of a window of 10 · 320 samples
FIRST, PREVIOUS, UNIT = NO_TIMES + 1, 75, 320
LONG = np.concatenate([*SOUNDS, SOUNDS[3]])[: 54 * UNIT]


def timed(**options):
    """Return a recognizer of speech with timestamps, which was trained with the text before its audio."""
    constraints = [generation.Timestamps(NO_TIMES, 3)]
    options = {"constraints": constraints, "previous_text_id": PREVIOUS, "prefix_ids": [NO_TIMES], **options}
    return transcribe("greedy", **options)


@pytest.fixture(scope="module")
def recognize():
    return timed()


def allowed_tokens(ids, logits, end_id, max_initial=3):
    """Return the mask of the tokens that Whisper's rules allow after ids, for a row with timestamps."""
    index = np.arange(len(logits))
    is_time = index >= FIRST
    allowed = index != NO_TIMES
    times = [id_ for id_ in ids if id_ >= FIRST]
    if not ids:
        allowed &= is_time & (index <= FIRST + max_initial)
    elif ids[-1] >= FIRST:
        is_pair = len(ids) < 2 or ids[-2] >= FIRST
        allowed &= ~is_time if is_pair else index >= end_id
    if times:
        is_end = ids[-1] >= FIRST and ids[-2:-1] and ids[-2] < FIRST
        allowed &= ~is_time | (index >= times[-1] + (0 if is_end else 1))
    weights = np.exp(logits - logits.max()) * allowed
    if weights[is_time].sum() > weights[~is_time].max():
        allowed &= is_time
    return allowed


def test_timestamps_are_constrained_unless_the_prompt_is_without():
    random, end_id = np.random.default_rng(0), 200
    constraint = generation.Timestamps(NO_TIMES, 3)
    for trial in range(200):
        length = int(random.integers(0, 6))
        ids = random.integers(4, end_id, length)
        places = random.random(length) < 0.5
        ids[places] = np.sort(random.integers(FIRST, FIRST + 11, places.sum()))
        logits = random.normal(size=BYTES.vocabulary_size).astype("float32") * (0.3, 3, 9)[trial % 3]
        padded = np.array([[[*ids, *[end_id] * (8 - length)]]], "int32")
        prompts = ops.convert_to_tensor(np.array([70, NO_TIMES], "int32"))
        history = History(np.tile(padded, (2, 1, 1)), length, (end_id,), last_prompt_ids=prompts)
        found = numbers(constraint(ops.convert_to_tensor(np.tile(logits, (2, 1, 1))), history))[:, 0]
        np.testing.assert_array_equal(is_allowed(found[0]), allowed_tokens(ids.tolist(), logits, end_id))
        np.testing.assert_array_equal(found[1], logits)


def decoded(recognize, audio, prompt, is_timed=True):
    """Return the ids that follow a prompt, by calls of the model."""
    model, ids = recognize.model, []
    limit = min(recognize.max_new_tokens, model.max_length + 1 - len(prompt))
    while len(ids) < limit:
        target = np.array([[*prompt, *ids]])
        logits = numbers(model({"audio": audio[None], "target_ids": target}))[0, -1].copy()
        logits[[model.pad_id, model.start_id]] = -1e30
        if is_timed:
            logits[~allowed_tokens(ids, logits, model.end_id)] = -1e30
        ids.append(int(logits.argmax()))
        if ids[-1] == model.end_id:
            return ids[:-1]
    return ids


def read_in_order(recognize, audio, prompt, context=(), keeps=False):
    """Return the spans of each window and its first sample, by calls of the model."""
    begin, context, found = 0, [*context], []
    while len(audio) - begin >= 160:
        window = audio[begin : begin + 3200]
        before = [PREVIOUS, *context[-5:]] if context else []
        ids = decoded(recognize, window, [*before, *prompt])
        parts, count = spans(ids, FIRST, -(-len(window) // UNIT))
        found += ((begin, part) for part in parts)
        context += (id_ for part in parts for id_ in part.ids if keeps)
        begin += UNIT * count
    return found


@pytest.mark.slow
@pytest.mark.parametrize("keeps", [False, True], ids=["alone", "with the text before"])
def test_windows_begin_where_the_last_segment_ended(recognize, keeps):
    options = {"long_audio": "sequential", "timestamps": True, "condition_on_previous_text": keeps}
    calls = []
    audio = [SOUNDS[1], LONG]
    found = recognize.transcripts(audio, 2, **options, progress=lambda *counts: calls.append(counts))
    assert found == recognize.served().transcripts(audio, 2, **options)
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    assert calls[-1][0] == calls[-1][1] > 3
    for samples, transcript in zip(audio, found, strict=True):
        expected = read_in_order(recognize, samples, [recognize.model.start_id], keeps=keeps)
        ids = [[id_ for id_ in part.ids if id_ < FIRST] for _, part in expected]
        assert transcript.text == recognize._texts([[id_ for part in ids for id_ in part]])[0]
        segments = [
            Segment(
                (begin + UNIT * part.start) / RATE,
                (begin + UNIT * part.end) / RATE,
                text.strip(),
                begin / RATE,
            )
            for (begin, part), text in zip(expected, recognize._texts(ids), strict=True)
            if text.strip()
        ]
        assert [each.text for each in transcript.segments] == [each.text for each in segments]
        end = len(samples) / RATE
        np.testing.assert_allclose(
            [(each.start, each.end, each.window) for each in transcript.segments],
            [(each.start, min(each.end, end), each.window) for each in segments],
        )
    assert len({each.window for each in found[1].segments}) > 1


@pytest.mark.slow
def test_a_prompt_is_the_text_before_the_audio(recognize):
    start = recognize.model.start_id
    ids = [*BYTES.encode(" hello there").numpy()]
    ids = [id_ for id_ in ids if id_ > 3]
    prompt = [PREVIOUS, *ids[-5:], start, NO_TIMES]
    expected = recognize._texts([decoded(recognize, SOUNDS[1], prompt, is_timed=False)])
    assert recognize(SOUNDS[1:2], prompt="hello there") == expected
    assert recognize.served()(SOUNDS[1:2], prompt=" hello there ") == expected
    assert recognize(SOUNDS[1:2], prompt=" ") == recognize(SOUNDS[1:2])
    # The rows of a batch have prompts of several lengths, and the one with a context a lower limit.
    rows = [recognize._prompt({}, context) for context in ([], ids, [80, 81])]
    served = recognize.served()
    for ids in ([-2], [BYTES.vocabulary_size]):
        with pytest.raises(ValueError, match="`decoder_input_ids` must be from -1 to"):
            served.run(audio=SOUNDS[1][None], decoder_input_ids=[ids])
    single = [
        served.run(audio=SOUNDS[1][None], decoder_input_ids=row["decoder_input_ids"][None]) for row in rows
    ]
    prompt_length = max(len(row["decoder_input_ids"]) for row in rows)
    padded = np.full((3, prompt_length), recognize.model.pad_id)
    for row, each in zip(padded, rows, strict=True):
        row[: len(each["decoder_input_ids"])] = each["decoder_input_ids"]
    together = served.run(audio=np.tile(SOUNDS[1], (3, 1)), decoder_input_ids=padded)["ids"]
    np.testing.assert_array_equal(together, [each["ids"][0] for each in single])


@pytest.mark.slow
def test_all_windows_have_the_language_of_the_first():
    known = transcribe_languages()
    recognize = timed(languages=known.languages, tasks=known.tasks)
    (found,) = recognize.transcripts([LONG], timestamps=True, long_audio="sequential")
    options = {"language": found.language, "timestamps": True, "long_audio": "sequential"}
    assert recognize.transcripts([LONG], **options) == [found]
    code = recognize.languages[found.language]
    expected = read_in_order(recognize, LONG, [recognize.model.start_id, code, 90])
    assert len(found.segments) == sum(
        any(text.strip() for text in recognize._texts([[id_ for id_ in part.ids if id_ < FIRST]]))
        for _, part in expected
    )
    served, prompts = recognize.served(), []
    run = served.engine.run
    served.engine.run = lambda feed: prompts.append(feed["decoder_input_ids"][0].tolist()) or run(feed)
    served.transcripts([LONG], timestamps=True, long_audio="sequential")
    start = recognize.model.start_id
    assert prompts == [[start, -1, 90], *[[start, code, 90]] * (len(prompts) - 1)]
    assert len(prompts) > 1


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([100, 7, 8, 102, 102, 9, 104, 104, 5], ([(0, 2, [100, 7, 8, 102]), (2, 4, [102, 9, 104])], 4)),
        ([100, 7, 102, 102, 9, 105], ([(0, 2, [100, 7, 102]), (2, 5, [102, 9, 105])], 10)),
        ([101, 7, 103], ([(0, 3, [101, 7, 103])], 10)),
        ([100, 7, 8], ([(0, 10, [100, 7, 8])], 10)),
        ([101], ([(0, 1, [101])], 10)),
        ([], ([(0, 10, [])], 10)),
    ],
    ids=["incomplete", "complete", "no pair", "no end", "no text", "empty"],
)
def test_spans_end_at_pairs_of_timestamps(ids, expected):
    assert spans(ids, 100, 10) == ([Span(*each) for each in expected[0]], expected[1])


def test_subtitles_have_the_times_of_segments():
    segments = [Segment(0.0, 1.5, "One\n\ntwo --> three"), Segment(3661.0, 3661.999, "Four")]
    assert subtitles(segments) == (
        "1\n00:00:00,000 --> 00:00:01,500\nOne two -> three\n\n2\n01:01:01,000 --> 01:01:01,999\nFour\n"
    )
    assert subtitles(segments[1:], is_webvtt=True) == "WEBVTT\n\n01:01:01.000 --> 01:01:01.999\nFour\n"
    assert subtitles([], is_webvtt=True) == "WEBVTT\n"


def test_options_without_their_needs_are_rejected(recognize):
    for make, options, message in (
        (transcribe, {"timestamps": True}, "`timestamps` needs a model with timestamps"),
        (transcribe, {"prompt": "a"}, "`prompt` needs a model that was trained with the text before"),
        (transcribe, {"condition_on_previous_text": True}, "`condition_on_previous_text` needs a model that"),
        (
            None,
            {"condition_on_previous_text": True},
            "must be false, or long_audio='sequential'. Received: long_audio='refuse'",
        ),
        (
            None,
            {"timestamps": True},
            "`timestamps` must be false for audio of more than 0.2 seconds, or long_audio='sequential'",
        ),
        (None, {"timestamps": True, "long_audio": "split"}, "`timestamps` must be false for audio"),
    ):
        pipeline = recognize if make is None else make()
        for each in (pipeline, pipeline.served()):
            with pytest.raises(ValueError, match=message):
                each.transcripts([LONG], **options)
    with pytest.raises(
        ValueError, match="`prefix_ids` must end with .*, the `no_timestamps_id` of `Timestamps`"
    ):
        timed(prefix_ids=[70])
    with pytest.raises(ValueError, match="`long_audio` must be 'refuse' or 'split' without `Timestamps`"):
        transcribe(long_audio="sequential")


@pytest.mark.slow
def test_settings_are_saved(recognize, tmp_path):
    recognize.save(tmp_path / "it")
    loaded = pipelines.load(tmp_path / "it")
    options = {"timestamps": True, "long_audio": "sequential", "condition_on_previous_text": True}
    assert loaded.transcripts([LONG], **options) == recognize.transcripts([LONG], **options)


@pytest.mark.slow
def test_exports_of_each_precision_have_segments(recognize, tmp_path):
    export.onnx(recognize, tmp_path / "it", precisions=("float32", "float16", "int8"))
    options = {"timestamps": True, "long_audio": "sequential"}
    for precision in ("float32", "float16", "int8"):
        (found,) = serving.load(tmp_path / "it", precision=precision).transcripts([LONG], **options)
        assert found.segments
        if precision == "float32":
            assert [found] == recognize.transcripts([LONG], **options)


def test_exports_without_prompts_are_read(recognize):
    """Graphs of older exports have the ids after the start token, or none, as their input."""
    old = transcribe_languages()
    served, prompts = old.served(), []
    config = {**served.config}
    for name in ("timestamp_samples", "no_timestamps_id", "previous_text_id", "max_previous_tokens"):
        config.pop(name)

    def run(inputs):
        prompts.append(inputs["prefix_ids"])
        prefix = np.pad(inputs["prefix_ids"], ((0, 0), (1, 0)), constant_values=old.model.start_id)
        return served.engine.run({**inputs, "decoder_input_ids": prefix})

    inputs = tuple(type(served).graph_inputs(config))
    engine = SimpleNamespace(run=run, inputs=inputs, outputs=served.engine.outputs, map=served.engine.map)
    older = type(served)(engine, config, served.tokenizer)
    assert older(SOUNDS[:2], language=["es", ""]) == old(SOUNDS[:2], language=["es", ""])
    np.testing.assert_array_equal(prompts[0][np.argsort(prompts[0][:, 0])], [[-1, 90, 70], [81, 90, 70]])
    with pytest.raises(ValueError, match="`timestamps` needs a model with timestamps"):
        older.transcripts(SOUNDS[:1], timestamps=True)


@pytest.mark.slow
def test_requests_have_segments_and_subtitles(recognize):
    from served_exports import listening

    content = wav(np.clip(LONG, -1, 1))
    samples = read_wav(content, RATE)
    (expected,) = recognize.transcripts([samples], timestamps=True, long_audio="sequential")
    served = recognize.served()
    signature = forward.signatures(served)["segments"]
    row = {"audio": [samples], "long_audio": ["sequential"]}
    (answer,) = signature.compute(signature.rows(row, lambda *_: "inputs"), {}, forward.Rows(served, 4), 4)
    assert answer["segment_texts"].tolist() == [each.text for each in expected.segments]
    with listening(create_app({"whisper": served})) as address:
        model, file = ("model", "whisper"), ("file", content, "a.wav")
        status, found = posted(
            address,
            "transcriptions",
            *(model, file, ("response_format", "verbose_json"), ("timestamp_granularities[]", "segment")),
        )
        assert (status, found["text"], found["duration"]) == (200, expected.text, len(samples) / RATE)
        keys = ("start", "end", "text")
        assert [[each[key] for key in keys] for each in found["segments"]] == [
            [round(each.start, 2), round(each.end, 2), each.text] for each in expected.segments
        ]
        assert [each["seek"] for each in found["segments"]] == [
            round(100 * each.window) for each in expected.segments
        ]
        for style, kind in (("srt", "application/x-subrip"), ("vtt", "text/vtt; charset=utf-8")):
            body, headers = form(("model", b"whisper"), ("response_format", style.encode()), file=content)
            request = urllib.request.Request(f"{address}/v1/audio/transcriptions", body, headers)
            with urllib.request.urlopen(request) as response:
                assert response.headers["Content-Type"] == kind
                assert response.read().decode() == subtitles(expected.segments, style == "vtt")
        short = ("file", wav(np.clip(SOUNDS[1], -1, 1)), "a.wav")
        _, found = posted(address, "transcriptions", model, short, ("prompt", "hey"))
        assert found["text"] == recognize(read_wav(short[1], RATE), prompt="hey")
        for parts, message in (
            ([("timestamp_granularities[]", "segment")], "`response_format` must be verbose_json for"),
            (
                [("timestamp_granularities[]", "word")],
                "must be segment, as the model's graph has no times of words",
            ),
            ([("response_format", "diarized_json")], "must be json or text or verbose_json or srt or vtt"),
        ):
            status, error = posted(address, "transcriptions", model, file, *parts)
            assert (status, message in error["message"]) == (400, True), error
        with urllib.request.urlopen(f"{address}/openapi.json") as response:
            paths = json.load(response)["paths"]
    body = paths["/v1/audio/transcriptions"]["post"]["requestBody"]["content"]["multipart/form-data"]
    assert body["schema"]["properties"]["response_format"]["enum"] == [
        "json",
        "text",
        "verbose_json",
        "srt",
        "vtt",
    ]


def form(*fields, file):
    """Return the body and the headers of a form with a WAV file."""
    lines = []
    for name, value in fields:
        lines += [b"--b", b'Content-Disposition: form-data; name="%s"' % name.encode(), b"", value]
    lines += [
        b"--b",
        b'Content-Disposition: form-data; name="file"; filename="a.wav"',
        b"",
        file,
        b"--b--",
        b"",
    ]
    return b"\r\n".join(lines), {"Content-Type": "multipart/form-data; boundary=b"}
