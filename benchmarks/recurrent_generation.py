"""Measure what a generated token costs after texts of several lengths: attention with its cache, S4D and Mamba-2.

Four blocks of width 256, batch 1. The state of the recurrent layers has a fixed size, the cache of attention an entry
for each earlier token. `state_mib` is the size of all states or caches. `--help` lists the options.
"""

from collections.abc import Callable
from typing import Any

import runner

LAYERS, SIZE, HEADS, TOKENS = 4, 256, 4, 32


def contender(name: str) -> runner.Prepare:
    """Return a contender with blocks of a mixer."""

    def prepare(case: Any, context: runner.Context) -> Callable[[], runner.Figures]:
        import keras
        import numpy as np
        import tensorflow as tf
        from keras import ops

        from keras_transformer import layers

        def mixer() -> Any:
            if name == "attention":
                return layers.MultiHeadAttention(HEADS, relation="causal", position_encoding="rotary")
            return layers.S4D(32) if name == "S4D" else layers.Mamba2(HEADS, 32, inner_dim=SIZE)

        tf.config.threading.set_intra_op_parallelism_threads(context.threads)
        length, end = case["length"], case["length"] + TOKENS
        blocks = [layers.DecoderBlock(mixer(), layers.FeedForward(2 * SIZE)) for _ in range(LAYERS)]
        for block in blocks:
            block.build((1, None, SIZE))
        caches = [block.self_attention.empty_cache(1, end) for block in blocks]

        def token(index: Any, hidden: Any, caches: Any) -> Any:
            new = []
            for block, cache in zip(blocks, caches, strict=True):
                positions = ops.reshape(index, (1, 1))
                hidden, cache = block.step(hidden, cache, cache_index=index, positions=positions)
                new.append(cache)
            return index + 1, hidden, new

        @tf.function(jit_compile=True)
        def generate(caches: Any) -> Any:
            start = ops.convert_to_tensor(length, "int32"), ops.ones((1, 1, SIZE)), caches
            return ops.while_loop(lambda index, *_: index < end, token, start)[1]

        size = sum(int(np.prod(values.shape)) for values in keras.tree.flatten(caches))

        def run() -> runner.Figures:
            generate(caches).numpy()
            return {"steps": TOKENS, "state_mib": 4 * size / 2**20}

        return run

    return prepare


BENCHMARK = runner.Benchmark(
    __file__,
    __doc__,
    "tokens",
    {f"after {length:,} tokens": {"length": length} for length in (128, 512, 2048, 8192)},
    {name: contender(name) for name in ("attention", "S4D", "Mamba-2")},
    columns={"state_mib": ".2f"},
)

if __name__ == "__main__":
    BENCHMARK.main()
