"""Exports of decoder-only models: the generation loop, and a step with a cache for external loops."""

import numpy as np
import onnx
import pytest
import tensorflow as tf

import keras_transformer_serving as serving
from keras_transformer import export, generation, relations, text
from keras_transformer.export import bundle_writer
from keras_transformer.generation import (
    Beam,
    Contrastive,
    Ensemble,
    Greedy,
    NoRepeatNGram,
    Sample,
    Speculative,
)
from keras_transformer.models import GPT, Gemma, Llama, Unlimiformer
from keras_transformer.ops.scores import ScaledDotProduct
from keras_transformer.pipelines import TextGeneration, TextToText, generation_graphs
from tests.random_weights import randomise
from tests.serving.in_tensorflow import without_graphs

SENTENCES = ["to be, or not to be: that is the question", "whether 'tis nobler in the mind", "ñandú ☃"]
PROMPTS = ["to be", "w", "the  que "]


def gpt2_tokenizer():
    """A tokenizer with one special token for start and end, and none for padding."""
    roles = dict.fromkeys(("unknown", "start", "end"), "<|endoftext|>")
    return text.BytePairTokenizer.train(SENTENCES, 290, special_tokens=roles)


def writer(tokenizer, sampler="greedy", constraints=(), add_start=False, special_tokens=False, **options):
    """A pipeline with dropout, which an export must not apply."""
    sizes = {"num_layers": 2, "num_heads": 2, "model_dim": 8, "max_length": 40, "dropout": 0.5}
    model = GPT(
        tokenizer.vocabulary_size,
        pad_id=tokenizer.pad_id,
        end_id=tokenizer.end_id,
        **{**sizes, "position_encoding": "rotary", **options},
    )
    randomise(model, scale=0.7, seed=1)
    return TextGeneration(
        model,
        tokenizer,
        sampler,
        constraints=constraints,
        max_new_tokens=5,
        max_source_tokens=30,
        add_start=add_start,
        special_tokens=special_tokens,
    )


def rows_of(pipeline, prompts):
    inputs = pipeline.preprocess(prompts).inputs
    return tf.ragged.boolean_mask(inputs["source_ids"], inputs["padding_mask"]).to_list()


def steps(model, run, ids, split):
    """Return the logits of ids (B, T), run in chunks of which each attends to the earlier ones in the cache."""
    mask = (ids != model.pad_id).astype("int64")
    positions = np.maximum(mask.cumsum(axis=1) - 1, 0)
    block = model.blocks[0].self_attention
    shape = (len(ids), block.num_kv_heads, 0, block.key_dim)
    past = {
        f"past_key_values.{i}.{part}": np.zeros(shape, "float32")
        for i in range(len(model.blocks))
        for part in ("key", "value")
    }
    logits = []
    for begin, end in zip([0, *split], [*split, ids.shape[1]], strict=True):
        found = run(ids[:, begin:end], mask[:, :end], positions[:, begin:end], past)
        logits.append(found.pop("logits"))
        past = {
            name.replace("present", "past_key_values"): np.asarray(value) for name, value in found.items()
        }
    return np.concatenate(logits, axis=1), past


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    "options",
    [
        {"position_encoding": "learned"},
        {"num_kv_heads": 1},
        {"position_encoding": "alibi"},
        {"relation": relations.SlidingWindow(2)},
    ],
    ids=str,
)
@pytest.mark.parametrize("split", [[], [1], [2, 3, 4]], ids=str)
def test_the_step_gives_the_model_logits_for_any_number_of_tokens(options, split):
    """Left-padded rows are included; the model itself needs right padding."""
    model = writer(text.ByteTokenizer(), **options).model
    random = np.random.default_rng(0)
    ids = random.integers(4, model.vocabulary_size, (3, 6))
    ids[1, :2] = model.pad_id
    ids[2, :5] = model.pad_id
    found, past = steps(
        model,
        lambda *given: generation_graphs.continue_(model, *map(tf.constant, given[:3]), given[3]),
        ids,
        split,
    )
    for row in ids:
        real = row[row != model.pad_id]
        expected = np.asarray(model(real[None]))[0]
        place = [list(each) for each in ids].index(list(row))
        np.testing.assert_allclose(found[place, -len(real) :], expected, rtol=1e-4, atol=1e-4)
    assert {value.shape[2] for value in past.values()} == {6}


@pytest.mark.slow
def test_the_loop_accepts_single_tokens_and_padding_on_either_side():
    pipeline = writer(text.ByteTokenizer(), num_layers=1)
    spec = tf.TensorSpec([None, None], tf.int32)
    run = tf.function(lambda ids: generation_graphs.generate_ids(pipeline, ids), [spec], autograph=False)
    prompts = [[0, 0, 8, 9], [0, 7, 0, 0], [5, 6, 7, 8], [7, 0, 0, 0]]
    expected = generation.generate(pipeline.model, np.array(prompts), max_new_tokens=5).best
    np.testing.assert_array_equal(run(tf.constant(prompts))["ids"].numpy(), expected)
    for single in ([[7]], [[7, 0]]):
        np.testing.assert_array_equal(run(tf.constant(single))["ids"].numpy(), expected[1:2])


def test_graphs_have_the_names_that_optimum_expects():
    found = writer(text.ByteTokenizer()).onnx_graphs()
    assert list(found) == ["generate_greedy", "model"]
    assert [spec.name for spec in found["model"].inputs] == [
        "input_ids",
        "attention_mask",
        "position_ids",
        *(f"past_key_values.{i}.{part}" for i in range(2) for part in ("key", "value")),
    ]


def test_speculative_pipelines_are_rejected(tmp_path):
    pipeline = writer(text.ByteTokenizer())
    pipeline.sampler = Speculative(pipeline.model)
    for function in (export.saved_model, export.onnx):
        with pytest.raises(
            ValueError, match=r"must not be speculative: export `pipeline.with_settings\('greedy'\)`"
        ):
            function(pipeline, tmp_path / "new")


def test_ensembles_have_no_graphs(tmp_path):
    pipeline = writer(text.ByteTokenizer())
    pipeline = pipeline.with_settings(model=Ensemble([pipeline.model, pipeline.model]))
    with pytest.raises(ValueError, match="must have a single model: export each model of an ensemble"):
        export.bundle(pipeline, tmp_path / "new")
    assert not (tmp_path / "new").exists()


CASES = {
    "bytes": (text.ByteTokenizer, Greedy(), {"position_encoding": "learned"}),
    "byte pairs, beam": (
        lambda: text.BytePairTokenizer.train(SENTENCES, 290),
        Beam(2, num_return=2),
        {"constraints": [NoRepeatNGram(2)], "num_kv_heads": 1},
    ),
    "without padding": (
        gpt2_tokenizer,
        Greedy(),
        {"position_encoding": "learned", "add_start": True, "special_tokens": True},
    ),
    "without padding, beam": (gpt2_tokenizer, Beam(2), {}),
    "GPT-1": (lambda: text.OpenAIGPTTokenizer.train(SENTENCES, 90), Greedy(), {}),
    "SentencePiece, samples": (
        lambda: text.SentencePieceTokenizer.train(SENTENCES, 320),
        Sample(1.2, top_p=0.9, seed=7, num_return=2),
        {"add_start": True, "special_tokens": True},
    ),
    "SentencePiece, contrastive": (
        lambda: text.SentencePieceTokenizer.train(SENTENCES, 60, byte_fallback=False),
        Contrastive(),
        {"position_encoding": "alibi"},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_exports_equal_the_pipeline(name, tmp_path, served_without_tensorflow):
    tokenizer, sampler, options = CASES[name]
    pipeline = writer(tokenizer(), sampler, **options)
    folder = tmp_path / "it"
    export.onnx(pipeline, folder)
    results = export.verify(folder)
    assert set(results["onnx"]["graphs"]) == {"onnx_loop", "onnx_steps"}
    assert results == export.verify(folder, pipeline)
    loop = serving.graphs.loop_name(serving.Bundle(folder).config)
    # Optimum has no class for grouped heads.
    optimum = "" if pipeline.model.num_kv_heads else "optimum/"
    files = {path.relative_to(folder / "onnx").as_posix() for path in (folder / "onnx").rglob("*.onnx")}
    assert files == {f"{loop}.onnx", f"{optimum}model.onnx"}
    served = serving.load(folder)
    out = pipeline.generate(PROMPTS)
    expected = out.ids if sampler.num_return > 1 else out.best
    rows = rows_of(pipeline, PROMPTS)
    np.testing.assert_array_equal(served.generate(rows)["ids"], expected)
    with pytest.raises(ValueError, match="`texts` must have ids from 0 to"):
        served.generate([[pipeline.model.vocabulary_size]])
    assert served(PROMPTS) == served_without_tensorflow(folder, PROMPTS) == pipeline(PROMPTS)
    np.testing.assert_array_equal(served.generate(PROMPTS)["ids"], expected)
    if not pipeline.add_start:
        for answer in (served, pipeline):
            with pytest.raises(
                ValueError, match=r"`texts` must each have a token. Received: none in texts\[1\]"
            ):
                answer(["a", ""])
    session = served.graphs.session("model")

    def run(ids, mask, positions, past):
        names = [output.name for output in session.get_outputs()]
        feed = {"input_ids": ids, "attention_mask": mask, "position_ids": positions, **past}
        return dict(zip(names, session.run(names, feed), strict=True))

    ids = np.array([[7, 5, 6, 8]])
    found, _ = steps(pipeline.model, run, ids, [1, 3])
    np.testing.assert_allclose(found, np.asarray(pipeline.model(ids)), rtol=1e-4, atol=1e-4)
    graph = onnx.load(folder / "onnx" / f"{optimum}model.onnx").graph
    shapes = {
        value.name: [size.dim_param or size.dim_value for size in value.type.tensor_type.shape.dim]
        for value in [*graph.input, *graph.output]
    }
    heads = pipeline.model.blocks[0].self_attention.num_kv_heads
    assert shapes["past_key_values.1.key"] == ["batch_size", heads, "past_sequence_length", 4]
    assert shapes["present.1.value"] == ["batch_size", heads, "past_sequence_length + sequence_length", 4]
    assert shapes["attention_mask"] == ["batch_size", "past_sequence_length + sequence_length"]


@pytest.mark.slow
def test_the_exported_loop_takes_a_mask_without_pad_id():
    pipeline = writer(gpt2_tokenizer(), add_start=True, special_tokens=True)
    prompts = [*PROMPTS, "", "to be<|endoftext|>"]
    (graph,) = (graph for name, graph in pipeline.onnx_graphs().items() if name.startswith("generate"))
    options = ["max_new_tokens", "min_new_tokens"]
    assert [spec.name for spec in graph.inputs] == ["input_ids", "attention_mask", *options]
    inputs = pipeline.preprocess(prompts).inputs
    ids, mask = inputs["source_ids"], inputs["padding_mask"]
    garbage = tf.where(mask, ids, 9)
    given = [tf.cast(garbage, tf.int64), tf.cast(mask, tf.int64), *map(tf.constant, graph.defaults.values())]
    found = tf.function(graph.function)(*given)
    np.testing.assert_array_equal(found["ids"], pipeline.generate(prompts).best)


@pytest.mark.parametrize(
    "make", [lambda: text.SentencePieceTokenizer.train(SENTENCES, 320), gpt2_tokenizer], ids=["SP", "GPT-2"]
)
def test_serving_recognises_special_tokens_like_the_pipeline(make):
    tokenizer = make()
    pipeline = writer(tokenizer, add_start=True, special_tokens=True)
    end = tokenizer.id_to_piece(tokenizer.end_id)
    prompts = ["", f"to be{end}the question", end, f" {end}<s> mind <unk>", "<pad>w"]
    config = bundle_writer.config_of(pipeline)
    served = serving.TextGeneration(
        without_graphs(config), config, serving.tokenizer_of(tokenizer.model_bytes, config)
    )
    assert served.encode(prompts) == rows_of(pipeline, prompts)
    ids = np.random.default_rng(0).integers(0, tokenizer.vocabulary_size, (40, 5))
    assert [served.decode(row) for row in ids] == [each.decode() for each in pipeline.decode(ids).numpy()]


@pytest.mark.slow
def test_unlimiformer_is_exported_as_a_loop_only(random_transformer, pipeline, texts, tmp_path):
    """The graph has no XLA-only operation; step graphs are not exported, as there is no cache to pass."""
    model = random_transformer(20, 1.5, vocabulary_size=pipeline.tokenizer.vocabulary_size)
    long = TextToText(Unlimiformer(model, top_k=4, chunk_length=8), pipeline.tokenizer, max_new_tokens=6)
    folder = tmp_path / "it"
    path = export.saved_model(long, folder, texts=texts)
    assert b"XlaDynamicUpdateSlice" not in (path / "saved_model.pb").read_bytes()
    export.onnx(long, folder, texts=texts)
    assert set(export.verify(folder)["onnx"]["graphs"]) == {"onnx_loop"}
    assert [path.name for path in (folder / "onnx").iterdir()] == ["generate_greedy.onnx"]
    assert serving.load(folder)(texts) == long(texts)


def windowed(kind, **options):
    """A pipeline of a model with grouped heads, in whose first block a token attends to three."""
    tokenizer = text.ByteTokenizer()
    sizes = {
        "num_layers": 2,
        "num_heads": 4,
        "model_dim": 8,
        "hidden_dim": 6,
        "num_kv_heads": 2,
        "key_dim": 6,
    }
    model = kind(
        tokenizer.vocabulary_size,
        **sizes,
        pad_id=tokenizer.pad_id,
        end_id=tokenizer.end_id,
        relation=[relations.SlidingWindow(2), "causal"],
        **options,
    )
    randomise(model, scale=0.7, seed=1)
    return TextGeneration(model, tokenizer, "greedy", max_new_tokens=8, max_source_tokens=30)


GEMMA_3 = {
    "max_wavelength": [10.0, 100.0],
    "score": ScaledDotProduct(0.3, 5.0),
    "soft_cap": 9.0,
    "normalization": "sandwich",
    "head_norm": True,
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "options"), [(Llama, {"max_wavelength": [50.0, None], "qkv_bias": True}), (Gemma, GEMMA_3)]
)
def test_exports_of_grouped_heads_and_windows_equal_the_pipeline(kind, options, tmp_path):
    pipeline = windowed(kind, **options)
    export.bundle(pipeline, tmp_path / "it", texts=PROMPTS)
    assert export.verify(tmp_path / "it")
    assert serving.load(tmp_path / "it")(PROMPTS) == pipeline(PROMPTS)


def test_the_loop_of_grouped_heads_and_windows_equals_a_loop_without_cache():
    pipeline = windowed(Gemma, **GEMMA_3)
    spec = tf.TensorSpec([None, None], tf.int32)
    run = tf.function(lambda ids: generation_graphs.generate_ids(pipeline, ids), [spec], autograph=False)
    prompts = np.array([[8, 9, 20, 30, 40], [7, 12, 13, 0, 0]])
    found = run(tf.constant(prompts, tf.int32))["ids"].numpy()
    for prompt, row in zip(prompts, found, strict=True):
        ids = prompt[prompt > 0].tolist()
        for token in row:
            logits = np.array(pipeline.model(np.array([ids])))[0, -1]
            logits[pipeline.model.pad_id] = -np.inf
            assert token == logits.argmax()
            ids.append(int(token))
            if token == pipeline.model.end_id:
                break
