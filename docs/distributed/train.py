"""Train a translator in any number of processes: `python train.py pairs.tsv runs/translator`, started by a launcher.

One process, without a launcher, trains the same model on the same batches.
"""

import os
import sys

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras

import keras_transformer as kt


def train(
    process: kt.training.Process, data: str, folder: str, epochs: int = 10, batch_size: int = 64
) -> None:
    """Train on this process's rows of every batch; process 0 saves the pipeline.

    Args:
        process: the return value of `initialize_distributed`.
        data: a file of pairs, the same for all processes.
        folder: a new folder for the pipeline.
        epochs: the number of epochs.
        batch_size: the size of a batch of all processes, a multiple of the number of processes and of devices.
    """
    tokenizer = kt.text.ByteTokenizer()
    batches = kt.data.translation_pairs(
        data,
        tokenizer,
        batch_size=batch_size // process.count,
        shard=(process.index, process.count),
    )
    model = kt.models.Transformer.small(tokenizer.vocabulary_size)
    model.compile(keras.optimizers.Adam(1e-3), kt.training.LabelSmoothedCrossentropy(0.1))
    model.fit(batches, epochs=epochs, shuffle=False)
    if process.is_main:
        # Saved without the distribution, since other processes take no part in it.
        keras.distribution.set_distribution(None)
        trained = type(model).from_config(model.get_config())
        trained.set_weights([weight.value.addressable_data(0) for weight in model.weights])
        kt.pipelines.TextToText(trained, tokenizer).save(folder)


if __name__ == "__main__":
    train(kt.training.initialize_distributed(), *sys.argv[1:3])
