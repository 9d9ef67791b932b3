"""Translation of 1,000 sentences by a trained model: quality, speed and memory beside CTranslate2.

CTranslate2 gets the weights of the model, of which `--model` is the saved pipeline. All contenders take Spanish texts
of spa-eng's test split and return English ones, by the same search; BLEU is that of all references. Sentences are
sorted by length, as CTranslate2 does, and translated 32 at once or one by one. Graphs and CTranslate2 use all cores:
the threads share the operations of a batch or, if there are fewer, compute several batches at the same time. Rates are
those of the tokens of the translations, peak memory that of a process that only translates. `--help` lists the options.

    .venv-bench/bin/python benchmarks/translation.py --model runs/translator
"""

import argparse
import functools
import json
import os
import pathlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import runner

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

XLA, GRAPH, GRAPH_INT8 = "ours, XLA", "ours, ONNX", "ours, ONNX int8"
CT2, CT2_INT8 = "CTranslate2", "CTranslate2 int8"
TESTED, ONE_BY_ONE, LENGTH_PENALTY, MAX_NEW_TOKENS = 1000, 200, 0.6, 64
CASES = {
    f"{'greedy' if beams == 1 else f'beam {beams}'}, {'batches of 32' if size > 1 else 'one by one'}": {
        "beams": beams,
        "batch_size": size,
    }
    for beams in (1, 4)
    for size in (32, 1)
}
Translate = Callable[[list[str]], list[str]]


def setup(folder: pathlib.Path, options: argparse.Namespace) -> None:
    """Write the texts, the exports of this package, and the models of CTranslate2."""
    from keras_transformer import export, pipelines
    from keras_transformer.datasets import spa_eng

    tested = sorted(spa_eng.references(spa_eng.load_data()[2]).items(), key=lambda pair: len(pair[0]))
    step = len(tested) // TESTED
    (folder / "texts.json").write_text(json.dumps(tested[::step][:TESTED]))
    pipeline = pipelines.load(options.model)
    for beams in (1, 4):
        precisions = ("float32", "int8")
        export.onnx(searching(pipeline, beams), folder / f"beams_{beams}", precisions=precisions)
    for name, quantization in (("float32", None), ("int8", "int8")):
        spec = ctranslate2_spec(pipeline.model)
        spec.optimize(quantization)
        (folder / name).mkdir()
        spec.save(str(folder / name))


def searching(pipeline: Any, beams: int) -> Any:
    """Return the pipeline with greedy search or beams, whose scores and end are those of CTranslate2."""
    from keras_transformer import generation

    beam = generation.Beam(
        beams, length_penalty=LENGTH_PENALTY, normalization="length", early_stopping="num_beams"
    )
    return pipeline.with_settings("greedy" if beams == 1 else beam, max_new_tokens=MAX_NEW_TOKENS)


def ctranslate2_spec(model: Any) -> Any:
    """Return the specification of a pre-norm Transformer of this package; tokens are ids as words."""
    from ctranslate2.converters import utils
    from ctranslate2.specs import common_spec, transformer_spec

    weights = {weight.path: weight.numpy() for weight in model.weights}
    spec = transformer_spec.TransformerSpec.from_config(
        (model.num_layers, model.num_decoder_layers), model.num_heads, pre_norm=True
    )

    def linear(target: Any, path: str) -> None:
        target.weight, target.bias = weights[f"{path}/kernel"].T, weights[f"{path}/bias"]

    def norm(target: Any, path: str) -> None:
        target.gamma, target.beta = weights[f"{path}/gamma"], weights[f"{path}/beta"]

    def attention(target: Any, path: str, fused: int) -> None:
        """Set the projections, of which as many are fused, and the norm before them."""
        parts = [common_spec.LinearSpec() for _ in range(3)]
        for part, name in zip(parts, ("query", "key", "value"), strict=True):
            linear(part, f"{path}/{name}")
        utils.fuse_linear(target.linear[0], parts[:fused])
        if fused == 1:
            utils.fuse_linear(target.linear[1], parts[1:])
        linear(target.linear[-1], f"{path}/output")
        norm(target.layer_norm, f"{path}_residual/norm")

    table = weights["embedding/embedding/embeddings"]
    positions = np.array(model.positions["encoder"].encode(np.arange(512), table.shape[1]))
    for side, part in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        embeddings = part.embeddings[0] if side == "encoder" else part.embeddings
        embeddings.weight, part.position_encodings.encodings = table, positions
        part.scale_embeddings = True
        norm(part.layer_norm, f"{side}_norm")
        for number, layer in enumerate(part.layer):
            block = f"{side}_{number}"
            attention(layer.self_attention, f"{block}/{'self_' if side == 'decoder' else ''}attention", 3)
            if side == "decoder":
                attention(layer.attention, f"{block}/cross_attention", 1)
            linear(layer.ffn.linear_0, f"{block}/feed_forward/hidden")
            linear(layer.ffn.linear_1, f"{block}/feed_forward/output")
            norm(layer.ffn.layer_norm, f"{block}/feed_forward_residual/norm")
    spec.decoder.projection.weight = table
    words = [str(id_) for id_ in range(len(table))]
    spec.register_source_vocabulary(words)
    spec.register_target_vocabulary(words)
    spec.config.bos_token = spec.config.decoder_start_token = str(model.start_id)
    spec.config.eos_token, spec.config.unk_token = str(model.end_id), str(model.pad_id)
    spec.config.add_source_eos = False
    spec.config.layer_norm_epsilon = model.epsilon
    spec.validate()
    return spec


def workers(case: dict[str, Any], context: runner.Context) -> int:
    """Return the number of batches to translate at the same time."""
    return max(context.options.threads) // context.threads if case["batch_size"] > 1 else 1


def translate_with_xla(case: dict[str, Any], context: runner.Context) -> Translate:
    """Return translation by the pipeline."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(context.threads)
    from keras_transformer import pipelines

    pipeline = searching(pipelines.load(context.options.model), case["beams"])
    return lambda texts: pipeline(texts, batch_size=case["batch_size"])


def translate_with_onnx(case: dict[str, Any], context: runner.Context, precision: str) -> Translate:
    """Return translation by the export."""
    import keras_transformer_serving as serving

    folder = context.folder / f"beams_{case['beams']}"
    model = serving.load(folder, precision=precision, threads=context.threads, workers=workers(case, context))
    return lambda texts: model(texts, batch_size=case["batch_size"])


def translate_with_ctranslate2(case: dict[str, Any], context: runner.Context, precision: str) -> Translate:
    """Return translation by CTranslate2, with the tokenizer of the export."""
    import ctranslate2

    import keras_transformer_serving as serving

    tokenizer = serving.load(context.folder / "beams_1", threads=1).tokenizer
    translator = ctranslate2.Translator(
        str(context.folder / precision),
        inter_threads=workers(case, context),
        intra_threads=context.threads,
        compute_type=precision,
    )

    def translate(texts: list[str]) -> list[str]:
        sources = [[*map(str, ids), str(tokenizer.end_id)] for ids in map(tokenizer.tokenize, texts)]
        results = translator.translate_batch(
            sources,
            beam_size=case["beams"],
            length_penalty=LENGTH_PENALTY,
            max_decoding_length=MAX_NEW_TOKENS,
            max_batch_size=case["batch_size"],
        )
        return [tokenizer.detokenize([int(word) for word in result.hypotheses[0]]) for result in results]

    return translate


CONTENDERS = {
    GRAPH: functools.partial(translate_with_onnx, precision="float32"),
    GRAPH_INT8: functools.partial(translate_with_onnx, precision="int8"),
    XLA: translate_with_xla,
    CT2: functools.partial(translate_with_ctranslate2, precision="float32"),
    CT2_INT8: functools.partial(translate_with_ctranslate2, precision="int8"),
}


def prepare(case: dict[str, Any], context: runner.Context, contender: str) -> runner.Run:
    """Prepare the translation of all test sentences, or of some one by one."""
    import sacrebleu

    import keras_transformer_serving as serving

    translate = CONTENDERS[contender](case, context)
    tokenizer = serving.load(context.folder / "beams_1", threads=1).tokenizer
    pairs = json.loads((context.folder / "texts.json").read_text())
    if case["batch_size"] == 1:
        pairs = pairs[:: len(pairs) // ONE_BY_ONE]
    texts, references = zip(*pairs, strict=True)
    most = max(map(len, references))
    columns = [[each[i] if i < len(each) else "" for each in references] for i in range(most)]

    def run() -> runner.Figures:
        begin, busy = time.perf_counter(), time.process_time()
        outputs = translate([*texts])
        times = {"seconds": time.perf_counter() - begin, "processor_seconds": time.process_time() - busy}
        bleu = sacrebleu.corpus_bleu(outputs, columns).score
        tokens = sum(len(tokenizer.tokenize(output)) for output in outputs)
        return {**times, "units": tokens, "BLEU": bleu, "outputs": outputs}

    return run


def derive(case: dict[str, Any], measured: dict[str, Any]) -> None:
    """Add the number of outputs that are those of this package in float32."""
    contenders = measured["contenders"]
    outputs = {name: figures.pop("outputs") for name, figures in contenders.items()}
    for name, figures in contenders.items():
        same = sum(one == other for one, other in zip(outputs[name], outputs[GRAPH], strict=True))
        figures["equal_outputs"] = same / len(outputs[name])


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the trained model."""
    parser.add_argument("--model", type=pathlib.Path, help="a pipeline, such as runs/translator")


BENCHMARK = runner.Benchmark(
    __file__,
    __doc__,
    "tokens",
    CASES,
    {name: functools.partial(prepare, contender=name) for name in CONTENDERS},
    threads=(1, 2),
    rounds=3,
    seconds=0.0,
    fresh=True,
    setup=setup,
    derive=derive,
    columns={"BLEU": ".2f", "equal_outputs": ".3f"},
    add_options=add_options,
)

if __name__ == "__main__":
    BENCHMARK.main()
