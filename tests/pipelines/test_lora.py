"""Pipelines, exports and resumed training of models with adapters."""

import keras
import numpy as np
import pytest

import keras_transformer as kt

TEXTS = ["to be or not to be", "that is the question", "whether 'tis nobler"] * 4
SIZES = {"num_layers": 1, "num_heads": 2, "model_dim": 16, "max_length": 64, "dropout": 0.1}


@pytest.fixture(scope="module")
def tokenizer():
    return kt.text.ByteTokenizer()


def batches(tokenizer):
    return kt.data.language_modeling(TEXTS, tokenizer, 2, length=16)


def adapted(tokenizer, epochs=1, folder=None):
    keras.utils.set_random_seed(0)
    model = kt.models.GPT(tokenizer.vocabulary_size, **SIZES)
    for weight in model.trainable_weights:
        weight.assign(keras.random.normal(weight.shape, stddev=0.3, seed=1))
    kt.training.enable_lora(model, 2)
    model.compile(keras.optimizers.Adam(0.05), kt.training.LabelSmoothedCrossentropy(0.0))
    callbacks = [] if folder is None else [kt.training.ExactResume(folder)]
    model.fit(batches(tokenizer), epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks)
    return model


@pytest.mark.slow
def test_resumed_training_of_adapters_is_exact(tokenizer, tmp_path):
    whole = adapted(tokenizer, 2)
    adapted(tokenizer, 1, tmp_path)
    resumed = adapted(tokenizer, 2, tmp_path)
    for found, expected in zip(resumed.weights, whole.weights, strict=True):
        np.testing.assert_array_equal(found, expected, err_msg=found.path)


@pytest.mark.slow
def test_pipeline_and_export_with_adapters_equal_the_merged_model(tokenizer, tmp_path):
    model = adapted(tokenizer)
    pipeline = kt.pipelines.TextGeneration(model, tokenizer, kt.generation.Greedy(), max_new_tokens=8)
    answers = pipeline(["to be", "the"])
    pipeline.save(tmp_path / "saved")
    assert kt.pipelines.load(tmp_path / "saved")(["to be", "the"]) == answers
    kt.export.bundle(pipeline, tmp_path / "export")  # compares the export with the pipeline
    kt.training.merge_lora(model)
    assert pipeline(["to be", "the"]) == answers
    import keras_transformer_serving

    assert keras_transformer_serving.load(tmp_path / "export")(["to be", "the"]) == answers
