"""The target "onnx": graphs for ONNX Runtime, in float32 and other precisions."""

import logging
import os
import pathlib
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras_transformer_serving as serving
from keras_transformer.export import card, signatures
from keras_transformer.export.bundle_writer import check_pipeline
from keras_transformer.export.parity.comparison import Texts, WithPipeline
from keras_transformer.export.targets import ExportTarget, Say
from keras_transformer.export.tensorflow_process import on_tensorflow
from keras_transformer.export.to_onnx import conversion, optimum, text_graphs
from keras_transformer.export.writing import write_parts
from keras_transformer.generation import Ensemble
from keras_transformer.models.causal_language_model import CausalLanguageModel
from keras_transformer.pipelines.forward import FORWARD
from keras_transformer_options.arguments import ArgumentError
from keras_transformer_serving import files, triton
from keras_transformer_serving.bundle import ONNX, SERVING
from keras_transformer_serving.graph_files import BY_DEFAULT, CONVERTED, FLOAT32, INT4, OPTIMUM
from keras_transformer_serving.graphs import MODEL, loop_name

_LOGGER = logging.getLogger(__name__)
_TRITON = f"{SERVING}/triton"


class Onnx(ExportTarget):
    """ONNX graphs; the arguments are those of the function `onnx`."""

    name, tags, options = ONNX, ("onnx",), ("precisions", "text_graph")
    converted = CONVERTED

    def __init__(self, precisions: Sequence[str] | None = (FLOAT32,), text_graph: bool = False) -> None:
        self.precisions, self.text_graph = precisions, text_graph

    def check(self, pipeline: Any) -> None:
        """Raise unless the pipeline can be exported in the precisions, and the packages are installed."""
        check_pipeline(pipeline)
        if isinstance(pipeline.model, Ensemble):
            raise ValueError(
                "`pipeline` must have a single model: export each model of an ensemble, or a SavedModel. "
                "Received: an Ensemble"
            )
        dtype = pipeline.model.compute_dtype
        if dtype == "bfloat16":
            raise ValueError(
                "`pipeline` must have a model that computes in float32 or float16, since the converter to ONNX does "
                "not support bfloat16. Copy the weights to a float32 model. Received: a model that computes in bfloat16"
            )
        self.check_precisions(dtype)
        if INT4 in (self.precisions or ()) and not isinstance(pipeline.model, CausalLanguageModel):
            raise ArgumentError(
                f"{{precisions}} must be without {INT4!r} unless the model is a decoder-only language model, such as "
                f"GPT, Llama or Gemma. Received: {{precisions=}}, a {type(pipeline.model).__name__}",
                precisions=self.precisions,
            )
        conversion.check_packages()
        if self.text_graph:
            text_graphs.check(pipeline)

    def write(self, pipeline: Any, folder: pathlib.Path) -> None:
        """Write the graphs in all precisions; see `export`."""
        self._write(pipeline, folder, [], None)

    def export(
        self, pipeline: Any, folder: pathlib.Path, report: dict[str, Any], compare: WithPipeline, say: Say
    ) -> None:
        """Write the graphs, and those precisions that are close enough to the pipeline."""
        super().export(pipeline, folder, report, compare, say)
        if self.text_graph:
            report["text_graph"] = text_graphs.write(pipeline, folder, report["examples"])

    def write_compared(
        self, pipeline: Any, folder: pathlib.Path, compare: WithPipeline, left_out: dict[str, str] | None
    ) -> None:
        """Write the graphs, for whose int8 conversion typical examples are used."""
        is_typical = pipeline.examples_are_typical
        examples = pipeline.example_inputs(compare.texts).get(FORWARD, []) if is_typical else []
        self._write(pipeline, folder, examples, left_out)
        _LOGGER.info("Compare the graphs with the model")

    def _write(
        self, pipeline: Any, folder: pathlib.Path, examples: Any, left_out: dict[str, str] | None
    ) -> None:
        """Convert the graphs; if `left_out` is given, it receives why a conversion failed, by precision."""
        loop = loop_name(pipeline.export_config()) if pipeline.generates else None
        configs = optimum.configurations(pipeline)
        dtype = pipeline.model.compute_dtype
        if left_out is not None and dtype != FLOAT32:
            left_out |= dict.fromkeys(BY_DEFAULT, f"the model computes in {dtype}")
        for name, graph in pipeline.onnx_graphs().items():
            converted = (self.precisions or BY_DEFAULT) if name == (loop or MODEL) else ()
            folders = {
                precision: folder / precision
                for precision in converted
                if precision != FLOAT32 and precision not in (left_out or ())
            }
            main = folder / OPTIMUM if configs and name != loop else folder
            conversion.write_graph(name, graph, pipeline.model.weights, main, folders, examples, left_out)
        for name, config in (configs or {}).items():
            files.write_json(folder / OPTIMUM / name, config)

    @classmethod
    def signatures(cls, folder: pathlib.Path) -> dict[str, Any]:
        """Return the inputs, outputs and defaults of the graphs."""
        return signatures.of_graphs(folder)

    @classmethod
    def serving_files(
        cls, config: Mapping[str, Any], reports: Mapping[str, Any]
    ) -> Iterator[tuple[str, bytes]]:
        """Yield a model for a model repository of Triton."""
        if graphs := reports[ONNX].get("signatures"):
            graph = triton.served_graph(config, graphs)
            tensors = graphs[graph.removesuffix(".onnx")]
            for name, content in triton.model_files(pathlib.Path(graph).name, tensors, config).items():
                yield f"{_TRITON}/{name}", content

    @classmethod
    def card(cls, name: str, pipeline: Any, reports: Mapping[str, Any]) -> Iterator[str]:
        """Yield how to run the graphs with ONNX Runtime and Triton."""
        specs = reports[ONNX].get("signatures", {})
        yield from _python(pipeline, reports[ONNX], specs)
        if specs:
            yield from _triton(name, pipeline, specs)


@on_tensorflow
def onnx(
    pipeline: Any,
    folder: str | os.PathLike[str],
    *,
    precisions: Sequence[str] | None = (FLOAT32,),
    texts: Texts | None = None,
    text_graph: bool = False,
    vocabulary_shortlist: Sequence[int] | None = None,
    signature_key: bytes | None = None,
    say: Callable[[str], None] = print,
) -> pathlib.Path:
    """Export a pipeline as ONNX graphs, and verify their outputs.

    For a generating pipeline, `generate_greedy.onnx`, `generate_beam.onnx`, `generate_sample.onnx` or
    `generate_contrastive.onnx`, by the pipeline's sampler, is the generation loop with its key/value cache and
    constraints: "input_ids" int64 (B, S) → "ids" int64 (B, M), "lengths" int64 (B,), "scores" float32 (B,), each with a
    second axis of size N if N > 1 hypotheses are returned. If it samples, it also takes "noise" float32 (B, N, M),
    uniform numbers as from `keras_transformer_serving.uniform_noise`. Inputs with defaults: "max_new_tokens" and
    "min_new_tokens" int64 (B,) or (1,), if it samples "temperature" float32 (B,) or (1,), and for an encoder–decoder
    "prefix_ids" int64 (B, Q) or (1, Q). For servers with their own loop there are `encoder_model.onnx` and
    `decoder_model_merged.onnx`, which takes a past of any length, including 0, and projects the encoder's output once;
    for a decoder-only model one `model.onnx`; for Unlimiformer only the loop.

    For other pipelines, `model.onnx` maps ids, images or graphs to the model's outputs. Tensors have Optimum's names;
    `export/README.md` lists them.

    All graphs except the loop are in the folder `optimum`, with a `config.json` and a `generation_config.json` of
    `transformers`, if Optimum's `ORTModel…` classes can run them.

    Args:
        pipeline: a pipeline of `pipelines`.
        folder: the export's folder; the graphs are written to `folder/onnx`.
        precisions: "float32" and optionally "float16", for GPUs, "int8" (weights and activations of matrix
            multiplications), for CPUs, and for decoder-only language models "int4" (weights of matrix multiplications
            in blocks of 4 bits, embeddings and output matrices in 8), for CPUs. The graph that
            `keras_transformer_serving.load` runs, the generation loop or `model.onnx`, is also written in these
            precisions, to `folder/onnx/float16`, `folder/onnx/int8` and `folder/onnx/int4`. Their outputs must be close
            to the pipeline's (`keras_transformer_serving.precisions.THRESHOLDS`). With None, the export has float16 and
            int8 if they are; the manifest says why one is left out.
        texts: texts to compare the pipeline and its graphs on, as for `bundle`; by default made from the vocabulary.
            Pipelines that do not generate are compared on random ids, images or graphs, too.
        text_graph: whether to write `text_to_text.onnx`, too, from "text" to "generated_text" and "error", strings
            (B,): the loop between the tokenizer and the detokenizer as operators of onnxruntime-extensions. For a
            `TextToText` with a SentencePiece tokenizer whose ids the operators give on the tokenizer's examples.
        vocabulary_shortlist: the ids of the tokens that the export generates, such as those of texts in the target
            language, with the model's `end_id`; its graphs compute the logits of no others. By default all. The report
            in `parity.json` has the number of outputs that are the same with the whole vocabulary.
        signature_key: a key to sign the manifest with (HMAC-SHA256), which `verify` and
            `keras_transformer_serving.load` can require; all parts of an export have the same key.
        say: a function that prints why a precision is left out.

    Returns:
        The folder of the graphs, which is created only when it is complete and verified.

    Raises:
        BlockingIOError: if another export writes to `folder`.
        FileExistsError: if `folder/onnx` exists already.
        ImportError: if a package of the extra "onnx" is not installed.
        ParityError: if an output differs; in other precisions, if outputs differ too much.
        ValueError: if an argument is invalid, or ONNX does not support an operation of the model.

    Example:
        >>> onnx(translator, "export/es-en", precisions=("float32", "int8"))
        PosixPath('export/es-en/onnx')
    """
    folder = files.as_folder(folder)
    target = Onnx(precisions, text_graph)
    target.check(pipeline)
    (part,) = write_parts(pipeline, folder, [target], texts, vocabulary_shortlist, signature_key, say)
    return folder / part


def _python(pipeline: Any, report: Mapping[str, Any], specs: Mapping[str, Any]) -> Iterator[str]:
    config = pipeline.export_config()
    yield "## Python, with ONNX Runtime\n"
    texts = serving.reads_text(config)
    extras = "cpu,tokenizers" if texts else "cpu"
    yield f"In this folder, with `keras-transformer-serving[{extras}]` and without TensorFlow:\n\n```python"
    numpy = "" if texts or pipeline.generates else "import numpy\n"
    yield f'{numpy}import keras_transformer_serving as serving\n\nmodel = serving.load(".")'
    if pipeline.generates:
        yield card.call(pipeline, report)
    else:
        yield card.forward_call(
            pipeline, next(graph for name, graph in specs.items() if name.endswith(MODEL))
        )
    yield f"```\n\nThe graphs in `{ONNX}/` take ids or arrays. Other programs can run them:\n"
    yield from card.table("graph", specs)


def _triton(name: str, pipeline: Any, specs: Mapping[str, Any]) -> Iterator[str]:
    graph = f"{ONNX}/{triton.served_graph(pipeline.export_config(), specs)}"
    model = shlex.quote(f"../model_repository/{name}")  # outside the export, whose files are verified
    yield f"## Triton: {_TRITON}\n"
    yield "A model for a model repository of NVIDIA Triton Inference Server; it takes arrays. In this folder:\n\n```sh"
    yield f'model={model}\nmkdir -p "$model/1"\ncp -r {_TRITON}/. "$model"\ncp {graph}* "$model/1"'
    yield "```\n"
