"""Sounds like those of speech, which exports of models of speech are compared on."""

import numpy as np

_SECONDS = 0.12  # of a sound
_FORMANTS = ((250, 800, 60), (800, 2300, 100), (2300, 3300, 140))  # the range and width of resonances, in Hz
_HARMONICS = 30


def babble(num_samples: int, sample_rate: int, seed: int = 0) -> np.ndarray:
    """Return vowels, hisses and silences at random, float32 (N,) in [−0.3, 0.3].

    Noise has none of the channels that are large in speech, and a recognizer hears no words in it.

    Args:
        num_samples: the number of samples.
        sample_rate: their number per second.
        seed: of the random sounds.
    """
    random, time = np.random.default_rng(seed), np.arange(num_samples) / sample_rate
    sound = (time / _SECONDS).astype(int)
    count = int(num_samples / sample_rate / _SECONDS) + 2
    pitch = random.uniform(90, 220, count)[sound] * (1 + 0.1 * np.sin(2 * np.pi * 3 * time))
    phase = 2 * np.pi * np.cumsum(pitch) / sample_rate
    formants = [(random.uniform(low, high, count)[sound], width) for low, high, width in _FORMANTS]
    voice = np.zeros(num_samples)
    for harmonic in range(1, _HARMONICS):
        frequency = harmonic * pitch
        loudness = sum(1 / (1 + ((frequency - formant) / width) ** 2) for formant, width in formants)
        voice += np.where(frequency < sample_rate / 2, loudness, 0) * np.sin(harmonic * phase)
    voice /= max(np.abs(voice).max(initial=0), 1e-9)
    hiss = 0.1 * random.normal(size=num_samples)
    is_voiced = random.random(count) < 0.75
    volume = random.choice([0, 0.3, 1, 1, 1], count)
    mixed = np.where(is_voiced[sound], voice, hiss) * volume[sound]
    return (0.3 * np.clip(mixed, -1, 1)).astype("float32")
