"""Pipelines whose model runs on JAX are exported by a process with TensorFlow."""

import os
import subprocess
import sys
import textwrap

import keras
import pytest

from keras_transformer import export

TRAIN_AND_EXPORT = """
    import sys
    import keras
    import numpy as np
    import tensorflow as tf
    import keras_transformer as kt

    sentences = {"uno dos": "one", "la casa": "house", "el gato come": "cat", "hoy": "rain"}
    tokenizer = kt.text.ByteTokenizer()
    batches = kt.data.translation_pairs(list(sentences.items()), tokenizer, batch_size=4)
    sizes = {"num_layers": 1, "num_heads": 2, "model_dim": 32, "hidden_dim": 64, "dropout": 0.0}
    model = kt.models.Transformer(tokenizer.vocabulary_size, **sizes)
    model.compile(keras.optimizers.Adam(0.01), kt.training.LabelSmoothedCrossentropy(0.0))
    model.fit(batches, epochs=40, verbose=0, shuffle=False)
    translator = kt.pipelines.TextToText(model, tokenizer, max_new_tokens=8)
    sources = list(sentences)
    assert translator(sources) == list(sentences.values())

    version = kt.export.saved_model(translator, sys.argv[1], texts=sources)
    signature = tf.saved_model.load(str(version)).signatures["generate_ids"]
    found = signature(text=tf.constant(sources))["ids"].numpy()
    expected = np.asarray(translator.generate(sources).ids)[:, 0, : found.shape[1]]
    np.testing.assert_array_equal(found, expected)
    try:
        kt.export.saved_model(translator, sys.argv[1], texts=sources)
    except FileExistsError as error:
        assert "the next free one is 2" in str(error), error
    else:
        raise AssertionError("a version was exported twice")
"""


@pytest.mark.slow
def test_export_of_a_model_trained_on_jax_gives_equal_ids(tmp_path):
    command = [sys.executable, "-c", textwrap.dedent(TRAIN_AND_EXPORT), str(tmp_path / "export")]
    environment = {**os.environ, "KERAS_BACKEND": "jax"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800, check=False)
    assert run.returncode == 0, run.stderr
    assert "Exporting in a process with TensorFlow: the model runs on jax" in run.stdout


def test_only_pipelines_are_exported_in_a_process(monkeypatch, tmp_path):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    for function in (export.saved_model, export.onnx, export.bundle):
        with pytest.raises(ValueError, match="`pipeline` must be one of"):
            function(None, tmp_path / "new")
    with pytest.raises(ValueError, match="TensorFlow backend of Keras. Received: jax"):
        export.onnx_model(
            keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]), tmp_path / "model.onnx"
        )
