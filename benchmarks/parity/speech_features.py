"""Compare log-mel spectrograms with librosa's and those of Whisper's feature extractor in `transformers`.

.venv-bench/bin/python benchmarks/parity/speech_features.py      # --help lists the options
"""

import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import librosa
import numpy as np
from transformers import WhisperFeatureExtractor

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import references

from keras_transformer import layers

RATE = 16000
SHAPES = {
    "80 bands, as Whisper": {},
    "128 bands, as Whisper large-v3": {"num_mels": 128},
    "40 bands at 8 kHz": {"num_mels": 40, "sample_rate": 8000, "window_length": 256, "hop_length": 80},
    "20 to 7600 Hz": {"min_frequency": 20.0, "max_frequency": 7600.0, "window_length": 512},
}
DEFAULTS = {
    "num_mels": 80,
    "sample_rate": RATE,
    "window_length": 400,
    "hop_length": 160,
    "min_frequency": 0.0,
    "max_frequency": None,
}


def audio(seed: int, seconds: float = 3.0) -> np.ndarray:
    """Return noise, a chirp with harmonics, clicks in near silence, and a quiet tone, float32 (4, N)."""
    random, time = np.random.default_rng(seed), np.arange(int(RATE * seconds)) / RATE
    noise = 0.1 * random.normal(size=time.shape)
    chirp = sum(0.3 / k * np.sin(2 * np.pi * k * (100 * time + 300 * time**2)) for k in range(1, 8))
    clicks = 1e-4 * random.normal(size=time.shape) + (random.random(time.shape) > 0.999)
    tone = 0.01 * np.sin(2 * np.pi * 440 * time) + 1e-5 * random.normal(size=time.shape)
    return np.stack([noise, chirp, clicks, tone]).astype("float32")


def compare(case: dict, seed: int) -> references.Figures:
    """Return the largest differences of frames without normalisation, and of those that Whisper reads."""
    settings = {**DEFAULTS, **case}
    inputs = audio(seed)
    frames = np.asarray(layers.LogMelSpectrogram(**settings, normalization=None)(inputs))
    energies = librosa.feature.melspectrogram(
        y=inputs,
        sr=settings["sample_rate"],
        n_fft=settings["window_length"],
        hop_length=settings["hop_length"],
        n_mels=settings["num_mels"],
        fmin=settings["min_frequency"],
        fmax=settings["max_frequency"],
        pad_mode="reflect",
    )
    expected = np.log10(np.maximum(energies, 1e-10))[..., : frames.shape[1]].swapaxes(1, 2)
    figures = {"librosa": float(np.abs(frames - expected).max())}
    if {**DEFAULTS, "num_mels": settings["num_mels"]} != settings:
        return figures
    extractor = WhisperFeatureExtractor(feature_size=settings["num_mels"])
    expected = extractor(list(inputs), sampling_rate=RATE, return_tensors="np").input_features.swapaxes(1, 2)
    padded = np.pad(inputs, [(0, 0), (0, 30 * RATE - inputs.shape[1])])
    frames = np.asarray(layers.LogMelSpectrogram(**settings)(padded))
    return {**figures, "transformers": float(np.abs(frames - expected).max())}


REFERENCE = references.Reference(
    __file__,
    __doc__,
    SHAPES,
    lambda run: {**run.case, **compare(run.case, run.seed)},
    limits={"librosa": 1e-4, "transformers": 1e-4},
    seeds=(0, 1),
    packages=("librosa",),
    name="parity_speech_features",
)

if __name__ == "__main__":
    sys.exit(REFERENCE.main())
