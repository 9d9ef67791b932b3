"""Recognize digits and short commands, spoken by espeak-ng, of voices that the model has not heard: a CTC model.

An utterance is 1 to 5 of 20 words, spoken in an English accent by one of espeak-ng's voices, at a random speed and
pitch; a token is a word. Voices of training, validation and test differ; those with the effect of a robot, a whisper, a
croak or a great age, and second versions of a voice, are in none. Training mixes audio without noise, whose silence is
digital, with noise of 8 to 40 decibels, and plays voices slower or faster, as of larger and smaller speakers. The word
error rate is measured on the test voices without noise and at two levels of it. espeak-ng must be installed: `apt-get
install espeak-ng`. `--help` lists the options.
"""

import concurrent.futures
import dataclasses
import io
import itertools
import pathlib
import shutil
import subprocess
import sys
import time
import wave
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import references

RATE = 16000
WORDS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
    *("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go"),
)
ACCENTS = ("en-us", "en-gb", "en-gb-x-rp", "en-gb-scotland", "en-029", "en-us-nyc", "en-gb-x-gbclan")
VOICES = {  # names of files: espeak-ng speaks with its default voice if there is none
    "train": "adam Alex Alicia Andrea Andy Annie antonio aunty belinda benjamin boris caleb david Denis Diogo ed "
    "edward Gene gustave Henrique Hugo iven Jacky john linda marcelo Marco Mario m1 m2 m3 m4 f1 f2 f3",
    "validation": "max Michael f4 m5 zac",
    "test": "Lee michel miguel Mike Nguyen pablo paul pedro quincy rob robert sandro shelby steph travis victor f5 m6",
}
NOISES = {"clean": None, "20 dB": 20.0, "10 dB": 10.0}


@dataclasses.dataclass(frozen=True)
class Settings:
    """The data, a model, and its training.

    Attributes:
        clean: the fraction of training audio without noise.
        sizes: the largest change of the size of a speaker, as a fraction.
    """

    utterances: int = 3000
    test_utterances: int = 400
    num_layers: int = 4
    num_heads: int = 4
    model_dim: int = 128
    strides: tuple[int, ...] = (2, 2, 2)
    batch_size: int = 16
    steps: int = 2600
    learning_rate: float = 1.5e-3
    warmup: int = 150
    clean: float = 0.2
    sizes: float = 0.3


@dataclasses.dataclass(frozen=True)
class Utterance:
    """A spoken text.

    Attributes:
        text: its words.
        audio: floats (N,).
    """

    text: str
    audio: np.ndarray


def speak(text: str, accent: str, voice: str, speed: int, pitch: int, size: float) -> Utterance:
    """Return a text as spoken by espeak-ng, then played slower by the factor `size`, as by a larger speaker."""
    command = ["espeak-ng", "--stdout", "-v", f"{accent}+{voice}", "-s", str(speed), "-p", str(pitch), text]
    output = subprocess.run(command, capture_output=True, check=True).stdout
    with wave.open(io.BytesIO(output)) as file:
        rate = file.getframerate()
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32768
    samples = samples[: len(samples) // 10 * 10]
    count = int(len(samples) * size * RATE / rate)
    spectrum = np.fft.rfft(samples)[: count // 2 + 1]
    return Utterance(text, (np.fft.irfft(spectrum, count) * count / len(samples)).astype("float32"))


def utterances(count: int, voices: str, seed: int, sizes: float = 0.0) -> list[Utterance]:
    """Return utterances of random words, voices, accents, speeds, pitches, and sizes within 1 ± `sizes`."""
    if shutil.which("espeak-ng") is None:
        raise SystemExit(
            "espeak-ng must be installed: apt-get install espeak-ng (Debian), brew install espeak-ng"
        )
    random, names = np.random.default_rng(seed), VOICES[voices].split()
    arguments = [
        (
            " ".join(random.choice(WORDS, random.integers(1, 6))),
            str(random.choice(ACCENTS)),
            str(random.choice(names)),
            int(random.integers(120, 190)),
            int(random.integers(30, 71)),
            1 + sizes * random.uniform(-1.0, 1.0),
        )
        for _ in range(count)
    ]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda each: speak(*each), arguments))


def with_noise(audio: np.ndarray, level: float | None, random: np.random.Generator) -> np.ndarray:
    """Add noise of a random spectral slope at a level in decibels below the speech, with silence around it."""
    audio = np.pad(audio, random.integers(400, 4000, 2))
    if level is None:
        return audio
    size = 1 << (len(audio) - 1).bit_length()  # of a fast Fourier transform
    frequencies = np.maximum(np.fft.rfftfreq(size, 1 / RATE), 50.0)
    spectrum = random.normal(size=(2, len(frequencies))) * frequencies ** random.uniform(-1.0, 0.0)
    noise = np.fft.irfft(spectrum[0] + 1j * spectrum[1])[: len(audio)]
    noise *= np.sqrt(np.mean(audio**2) / np.mean(noise**2)) * 10 ** (-level / 20)
    return (audio + noise).astype("float32")


def padded(rows: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return rows as one array, padded with zeros, and their lengths."""
    lengths = np.array([len(row) for row in rows], "int32")
    values = np.zeros((len(rows), lengths.max()), rows[0].dtype)
    for row, value in zip(rows, values, strict=True):
        value[: len(row)] = row
    return values, lengths


def batches(
    spoken: Sequence[Utterance], tokenizer: Any, batch_size: int, clean: float, seed: int
) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
    """Yield batches of utterances of similar lengths with new noise, a fraction of them `clean`, for ever."""
    random = np.random.default_rng(seed)
    ids = [np.array(tokenizer.tokenize(each.text)) for each in spoken]
    while True:
        keys = [len(each.audio) * random.uniform(0.9, 1.1) for each in spoken]
        order = np.argsort(keys)
        starts = np.arange(0, len(order) - batch_size + 1, batch_size)
        for start in random.permutation(starts):
            rows = order[start : start + batch_size]
            levels = [None if random.uniform() < clean else random.uniform(8.0, 40.0) for _ in rows]
            audio = [
                with_noise(spoken[row].audio, level, random) for row, level in zip(rows, levels, strict=True)
            ]
            values, lengths = padded(audio)
            yield {"audio": values, "lengths": lengths}, padded([ids[row] for row in rows])[0]


def word_error_rate(recognize: Any, spoken: Sequence[Utterance], level: float | None, seed: int) -> float:
    """Return the word error rate of a recognizer, in percent."""
    from keras_transformer.recipes import scores

    random = np.random.default_rng(seed)
    texts = recognize([with_noise(each.audio, level, random) for each in spoken])
    return 100 * scores.word_error_rate([each.text for each in spoken], texts)


def run(run: references.Run) -> references.Figures:
    """Train a model, and return its word error rates."""
    import keras

    from keras_transformer import models, pipelines, text

    settings, seed = run.settings, run.seed
    keras.utils.set_random_seed(seed)
    train = utterances(settings.utterances, "train", 3 * seed, settings.sizes)
    validation = utterances(settings.test_utterances // 2, "validation", 3 * seed + 1)
    test = utterances(settings.test_utterances, "test", 3 * seed + 2)
    tokenizer = text.WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])
    encoder = models.SpeechEncoder(
        settings.num_layers,
        settings.num_heads,
        settings.model_dim,
        4 * settings.model_dim,
        strides=settings.strides,
    )
    model = models.CTC(encoder, tokenizer.vocabulary_size)
    warmup = min(settings.warmup, settings.steps // 2)  # for a short try
    rate = keras.optimizers.schedules.CosineDecay(
        0.0, settings.steps - warmup, 0.01, warmup_target=settings.learning_rate, warmup_steps=warmup
    )
    model.compile(keras.optimizers.AdamW(rate, global_clipnorm=1.0), keras.losses.CTC(), jit_compile=False)
    recognize = pipelines.SpeechToText(model, tokenizer)
    stream = batches(train, tokenizer, settings.batch_size, settings.clean, seed)
    started, minutes, curve = time.process_time(), 0.0, []
    for first in range(0, settings.steps, every := max(1, settings.steps // 8)):
        steps = list(itertools.islice(stream, min(every, settings.steps - first)))
        losses = [float(model.train_on_batch(inputs, labels)) for inputs, labels in steps]
        minutes = (time.process_time() - started) / 60
        curve.append(word_error_rate(recognize, validation, 20.0, seed))
        print(
            f"{first + len(steps)} steps, {minutes:.1f} processor minutes: loss {losses[-1]:.3f}, "
            f"validation {curve[-1]:.1f} %",
            file=sys.stderr,
            flush=True,
        )
    rates = {
        f"word error rate, {name}": word_error_rate(recognize, test, level, seed)
        for name, level in NOISES.items()
    }
    return {
        **rates,
        "validation": curve,
        "words": sum(len(each.text.split()) for each in test),
        "train_hours": sum(len(each.audio) for each in train) / RATE / 3600,
        "train_cpu_minutes": minutes,
        "parameters": model.count_params(),
    }


REFERENCE = references.Reference(
    __file__,
    __doc__,
    {"CTC": Settings()},
    run,
    measures=[f"word error rate, {name}" for name in NOISES],
    settings=Settings,
    seeds=(0, 1, 2),
)

if __name__ == "__main__":
    sys.exit(REFERENCE.main())
