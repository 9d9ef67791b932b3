"""WAV files and spoken tones for tests."""

import io
import wave

import numpy as np

RATE = 16000
TONES = {"low": 300, "middle": 900, "high": 2500}
"""The frequency of each word of `spoken`."""


def wav(samples, rate=RATE, width=2, channels=1):
    """Return the content of a WAV file."""
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setparams((channels, width, rate, 0, "NONE", ""))
        whole = np.round(np.asarray(samples, "float64") * (2 ** (8 * width - 1) - 1)).astype("<i8")
        if width == 1:
            whole += 128
        file.writeframes(whole.view("u1").reshape(-1, 8)[:, :width].tobytes())
    return content.getvalue()


def spoken(text, seed=0):
    """Return a text whose words are tones of 0.4 seconds, in noise."""
    time = np.arange(2 * RATE // 5) / RATE
    tones = [np.sin(2 * np.pi * TONES[word] * time) * np.hanning(len(time)) for word in text.split()]
    noise = np.random.default_rng(seed).normal(size=len(tones) * len(time))
    return (0.3 * np.concatenate(tones) + 0.01 * noise).astype("float32")
