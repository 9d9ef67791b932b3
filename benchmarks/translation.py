"""Translation of 1,000 sentences by a trained model: quality, speed and memory beside CTranslate2.

CTranslate2 runs the model as `export` writes it; `--model` is the saved pipeline. All contenders take Spanish texts
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
    from keras_transformer.export.to_ctranslate2.target import write_model

    tested = sorted(spa_eng.references(spa_eng.load_data()[2]).items(), key=lambda pair: len(pair[0]))
    step = len(tested) // TESTED
    (folder / "texts.json").write_text(json.dumps(tested[::step][:TESTED]))
    pipeline = pipelines.load(options.model)
    for beams in (1, 4):
        precisions = ("float32", "int8")
        export.onnx(searching(pipeline, beams), folder / f"beams_{beams}", precisions=precisions)
    for precision in ("float32", "int8"):
        write_model(pipeline, folder / precision, precision)


def searching(pipeline: Any, beams: int) -> Any:
    """Return the pipeline with greedy search or beams, whose scores and end are those of CTranslate2."""
    from keras_transformer import generation

    beam = generation.Beam(
        beams, length_penalty=LENGTH_PENALTY, normalization="length", early_stopping="num_beams"
    )
    return pipeline.with_settings("greedy" if beams == 1 else beam, max_new_tokens=MAX_NEW_TOKENS)


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
    workers = context.workers if case["batch_size"] > 1 else 1
    model = serving.load(folder, precision=precision, threads=context.threads, workers=workers)
    return lambda texts: model(texts, batch_size=case["batch_size"])


def translate_with_ctranslate2(case: dict[str, Any], context: runner.Context, precision: str) -> Translate:
    """Return translation by CTranslate2, with the tokenizer of the export."""
    import ctranslate2

    import keras_transformer_serving as serving

    tokenizer = serving.load(context.folder / "beams_1", threads=1).tokenizer
    pieces = json.loads((context.folder / precision / "shared_vocabulary.json").read_text())
    ids_of = {piece: id_ for id_, piece in enumerate(pieces)}
    translator = ctranslate2.Translator(
        str(context.folder / precision),
        inter_threads=context.workers if case["batch_size"] > 1 else 1,
        intra_threads=context.threads,
        compute_type=precision,
    )

    def translate(texts: list[str]) -> list[str]:
        sources = [[pieces[id_] for id_ in ids] for ids in map(tokenizer.tokenize, texts)]
        results = translator.translate_batch(
            sources,
            beam_size=case["beams"],
            length_penalty=LENGTH_PENALTY,
            max_decoding_length=MAX_NEW_TOKENS,
            max_batch_size=case["batch_size"],
        )
        return [tokenizer.detokenize([ids_of[piece] for piece in result.hypotheses[0]]) for result in results]

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
