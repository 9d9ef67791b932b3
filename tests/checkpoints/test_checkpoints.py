"""Real checkpoints, from their folders to served answers in each precision, without PyTorch.

The embeddings and transcripts are those of `sentence-transformers` and `transformers`, which
`benchmarks/parity/published_checkpoints.py` writes. `make install-published` installs the checkpoints.
"""

import base64
import functools
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys
import urllib.request

import numpy as np
import pytest

import keras_transformer as kt
import keras_transformer_serving as serving
from tests.audio import wav

PARITY = pathlib.Path(__file__).resolve().parents[2] / "benchmarks" / "parity"
PRECISIONS = ("float32", "float16", "int8")
SPOKEN = 4  # utterances that each precision of the export transcribes here


@pytest.fixture(scope="module")
def checkpoints():
    """The program that finds and describes the checkpoints."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(PARITY))
        import published_checkpoints

        yield published_checkpoints


def available(checkpoints, find):
    """Return what a function finds, or skip the test with the reason."""
    try:
        return find()
    except checkpoints.MissingError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def minilm(checkpoints):
    """The folder of all-MiniLM-L6-v2."""
    return available(checkpoints, checkpoints.minilm)


@pytest.fixture(scope="module")
def embeddings(checkpoints):
    """The embeddings of `sentence-transformers`."""
    with np.load(checkpoints.REFERENCES / "embeddings.npz") as file:
        return file["embeddings"]


@pytest.fixture(scope="module")
def whisper(checkpoints, tmp_path_factory):
    """The folder of whisper-tiny.en."""
    find = functools.partial(checkpoints.whisper, tmp_path_factory.mktemp("whisper") / "whisper-tiny.en")
    return available(checkpoints, find)


@pytest.fixture(scope="module")
def transcripts(checkpoints):
    """The audio of utterances, and the transcripts of `transformers`, of each and of the first ones together."""
    version = available(checkpoints, checkpoints.espeak_version)
    content = json.loads((checkpoints.REFERENCES / "transcripts.json").read_text())
    if version != content["espeak-ng"]:
        pytest.skip(
            f"espeak-ng must be {content['espeak-ng']}, which spoke the utterances. Received: {version}"
        )
    texts = (*checkpoints.UTTERANCES, *checkpoints.MISHEARD)
    return [checkpoints.spoken(text) for text in texts], content["transcripts"], content["long"]


def command(*arguments):
    """Return a command of the program, and its environment."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path))),
        "KERAS_BACKEND": "tensorflow",
    }
    return [sys.executable, "-m", "keras_transformer_cli", *map(str, arguments)], environment


def convert(source, folder):
    """Convert a folder to an export in each precision."""
    line, environment = command("convert", source, "--output", folder, "--precisions", *PRECISIONS)
    done = subprocess.run(line, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    """A function from a folder to its export."""
    base = tmp_path_factory.mktemp("exports")
    return functools.cache(lambda source: convert(source, base / source.name))


def served(folder, precision, instances):
    """Return the predictions of a server that one command starts."""
    line, environment = command("serve", folder, "--precision", precision, "--port", 0)
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            printed = (re.fullmatch(r"(http://.*/v1/models/\S+):predict\n", line) for line in process.stdout)
            url = next(found[0].rstrip("\n") for found in printed if found)
            request = urllib.request.Request(url, json.dumps({"instances": instances}).encode())
            with urllib.request.urlopen(request, timeout=120) as response:
                return json.load(response)["predictions"]
        finally:
            process.terminate()


def test_embeddings_equal_sentence_transformers(checkpoints, minilm, embeddings):
    pipeline = kt.pipelines.from_hugging_face(minilm)
    np.testing.assert_allclose(np.asarray(pipeline(list(checkpoints.TEXTS))), embeddings, atol=1e-6)


@pytest.mark.filterwarnings("ignore:.*not supported. begin_suppress_tokens")
def test_transcripts_equal_transformers(checkpoints, whisper, transcripts):
    audio, expected, _ = transcripts
    found = kt.pipelines.from_hugging_face(whisper)(audio)
    assert [text.strip() for text in found] == expected


@pytest.mark.filterwarnings("ignore:.*not supported. begin_suppress_tokens")
def test_words_of_a_minute_equal_transformers(checkpoints, whisper, transcripts):
    audio, _, expected = transcripts
    recognize = kt.pipelines.from_hugging_face(whisper, long_audio="split")
    found = recognize(np.concatenate(audio[: len(checkpoints.UTTERANCES)]))
    assert checkpoints.words(found) == checkpoints.words(expected)
    with pytest.raises(ValueError, match="`language` must be None, as the model has no languages"):
        recognize(audio[0], language="en")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*not supported. begin_suppress_tokens")
def test_words_of_windows_that_follow_each_other_equal_transformers(checkpoints, whisper, exports):
    transcripts = json.loads((checkpoints.REFERENCES / "transcripts.json").read_text())
    recognizers = kt.pipelines.from_hugging_face(whisper), serving.load(exports(whisper))
    for recognize, (keeps, expected) in itertools.product(recognizers, enumerate(transcripts["sequential"])):
        options = {"long_audio": "sequential", "condition_on_previous_text": bool(keeps)}
        (found,) = recognize.transcripts([checkpoints.long_audio()], timestamps=True, **options)
        assert checkpoints.words(found.text) == checkpoints.words(expected)
        assert len(found.segments) == 21
        assert found.segments[-1].end > 58


@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISIONS)
def test_served_embeddings(checkpoints, minilm, embeddings, exports, precision):
    """As precise as docs/int8.md promises; in order of similarity, too."""
    texts, export = list(checkpoints.TEXTS), exports(minilm)
    found = np.asarray(serving.load(export, precision=precision)(texts))
    answers = [
        each["embedding"] if isinstance(each, dict) else each for each in served(export, precision, texts)
    ]
    for vectors in (found, np.asarray(answers)):  # in int8, a vector depends on the others of its batch
        assert_are_embeddings(checkpoints, precision, vectors, embeddings)


def assert_are_embeddings(checkpoints, precision, vectors, embeddings):
    """Compare vectors with those of sentence-transformers."""
    cosines = checkpoints.cosines(vectors, embeddings)
    figures = {
        "largest_difference": np.abs(vectors - embeddings).max(),
        "mean_cosine": cosines.mean(),
        "smallest_cosine": cosines.min(),
    }
    assert checkpoints.is_within_limits((precision, figures))
    assert checkpoints.rank_correlation(vectors, embeddings) > 0.99


@pytest.mark.slow
def test_embeddings_in_litert(checkpoints, minilm, embeddings, tmp_path):
    pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed")
    pipeline = kt.pipelines.from_hugging_face(minilm)
    folder = kt.export.bundle(pipeline, tmp_path / "it", targets=["litert"], precisions=PRECISIONS)
    for precision in PRECISIONS:
        served = serving.load(folder, precision=precision)
        assert_are_embeddings(checkpoints, precision, np.asarray(served(list(checkpoints.TEXTS))), embeddings)


@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISIONS)
def test_served_transcripts(checkpoints, whisper, transcripts, exports, precision):
    audio, expected = (each[:SPOKEN] for each in transcripts[:2])
    export = exports(whisper)
    answer = serving.load(export, precision=precision)
    assert [checkpoints.words(answer(each)) for each in audio] == [
        checkpoints.words(text) for text in expected
    ]
    encoded = base64.b64encode(wav(audio[0])).decode()
    (text,) = served(export, precision, [{"audio": {"b64": encoded}}])
    text = text["text"] if isinstance(text, dict) else text
    assert checkpoints.words(text) == checkpoints.words(expected[0])


@pytest.mark.slow_variants
@pytest.mark.parametrize("name", ["bert-bge", "gpt-2", "llama-spm", "llama-bpe", "qwen2", "phi-3"])
def test_vocabularies_give_the_expected_ids(checkpoints, name):
    """The ids that llama.cpp's sources have for 46 lines, and those of `tokenizers` for hard lines."""
    import vocabularies

    folder = available(checkpoints, checkpoints.vocabularies)
    base, _ = vocabularies.FOLDERS[name]
    figures = vocabularies.compare(folder / f"ggml-vocab-{base}.gguf", name, 100, javascript=False)
    assert "refused" not in figures
    assert figures["lines"] == 46
    assert vocabularies.is_equal(figures), figures
