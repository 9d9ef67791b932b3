"""Train a translator with Ray Train: `python ray_train.py pairs.tsv runs/translator`, on a cluster or one machine."""

import os
import socket
import sys

import ray
import ray.train
import ray.train.collective
from ray.train.v2.jax import JaxTrainer


def train_worker(config: dict[str, object]) -> None:
    """Train in a worker, connected to the others."""
    os.environ["KERAS_BACKEND"] = "jax"
    sys.path.insert(0, str(config["folder_of_train"]))
    import train

    import keras_transformer as kt

    context = ray.train.get_context()
    # Ray connects JAX's processes on GPUs and TPUs only.
    address = None
    if context.get_world_rank() == 0:
        with socket.socket() as probe:
            probe.bind(("", 0))
            address = f"{ray.util.get_node_ip_address()}:{probe.getsockname()[1]}"
    address = ray.train.collective.broadcast_from_rank_zero(address)
    process = kt.training.initialize_distributed(address, context.get_world_size(), context.get_world_rank())
    train.train(
        process, config["data"], config["folder"], config.get("epochs", 10), config.get("batch_size", 64)
    )


def main(data: str, folder: str, num_workers: int = 2, **options: int) -> None:
    """Start the workers, and wait for them."""
    config = {"data": os.path.abspath(data), "folder": os.path.abspath(folder), **options}
    trainer = JaxTrainer(
        train_worker,
        train_loop_config={**config, "folder_of_train": os.path.dirname(os.path.abspath(__file__))},
        scaling_config=ray.train.ScalingConfig(num_workers=num_workers),
    )
    trainer.fit()


if __name__ == "__main__":
    main(*sys.argv[1:3])
