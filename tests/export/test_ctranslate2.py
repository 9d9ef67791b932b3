"""Exports for CTranslate2: ids of the pipeline, and the rejection of other models and searches by name."""

import json
import sys

import numpy as np
import pytest
from served_exports import json_call, run

import keras_transformer_serving as serving
from keras_transformer import export, layers, models, pipelines, relations, text
from keras_transformer.generation import (
    Beam,
    EndTokens,
    MinNewTokens,
    NoRepeatNGram,
    Sample,
)
from keras_transformer_cli import commands
from keras_transformer_serving.ctranslate2_engines.generation import Search
from keras_transformer_serving.server import versions
from tests.export import test_published_families
from tests.export.engines import engine_of
from tests.pipelines import test_languages

ctranslate2 = pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")

TOKENIZER = text.ByteTokenizer()
TEXTS = ["a b", "hola", "x", "ñandú ☃"]
SIZES = {"num_layers": 2, "num_heads": 2, "model_dim": 16, "hidden_dim": 32}
IDS = {"pad_id": TOKENIZER.pad_id, "end_id": TOKENIZER.end_id}
SEARCHES = {
    "beams": Beam(3),
    "sums": Beam(3, length_penalty=0.0),
    "several": Beam(4, num_return=3, length_penalty=-0.5, early_stopping=False),
    "first": Beam(4, length_penalty=1.0, normalization="length", early_stopping="num_beams"),
    "first sums": Beam(4, length_penalty=0.0, early_stopping="num_beams", num_return=2),
}


def randomise(model, seed=0):
    """Set random weights with which outputs differ in each token."""
    random = np.random.default_rng(seed)
    for weight in model.weights:
        scale = 0.3 if len(weight.shape) > 1 else 0.1
        is_factor = weight.path.endswith(("gamma", "scale"))
        weight.assign(random.normal(float(is_factor), scale, weight.shape))
    return model


def translator(model=models.Transformer, sampler="greedy", **options):
    """Return an encoder–decoder; where logits have a bias, outputs end, and no padding is probable."""
    made = model(TOKENIZER.vocabulary_size, **{**SIZES, **options}, start_id=TOKENIZER.start_id, **IDS)
    randomise(made, 2)
    if options.get("output_bias"):
        bias = np.zeros(TOKENIZER.vocabulary_size)
        bias[[TOKENIZER.pad_id, TOKENIZER.start_id]], bias[TOKENIZER.end_id] = -30, 1.5
        made.output_bias.assign(bias)
    return pipelines.TextToText(made, TOKENIZER, sampler, max_new_tokens=8, max_source_tokens=30)


def writer(model=models.GPT, **options):
    """Return a decoder-only model."""
    made = randomise(model(TOKENIZER.vocabulary_size, **{**SIZES, **options}, **IDS))
    return pipelines.TextGeneration(made, TOKENIZER, max_new_tokens=8, max_source_tokens=30)


def exported(pipeline, folder, precisions=("float32",)):
    return export.bundle(
        pipeline, folder / "it", targets=["ctranslate2"], texts=TEXTS, precisions=precisions, say=str
    )


def test_an_export_is_compared_and_loaded(tmp_path):
    pipeline = translator(num_layers=1)
    folder = exported(pipeline, tmp_path)
    report = {"texts": 4, "graphs": {"ctranslate2": {"identical": 4, "near_ties": 0}}}
    assert export.verify(folder)["ctranslate2"] == serving.verify(folder)["ctranslate2"] == report
    card = (folder / "README.md").read_text()
    assert 'serving.load(".", engine="ctranslate2")' in card
    assert "tags: [keras, ctranslate2]" in card
    # CTranslate2 alone reads and writes pieces.
    plain = ctranslate2.Translator(str(folder / "ctranslate2"))
    pieces = [*map("<0x{:02X}>".format, TEXTS[0].encode())]
    (found,) = plain.translate_batch([pieces], beam_size=1, max_decoding_length=8, return_end_token=True)
    vocabulary = json.loads((folder / "ctranslate2" / "shared_vocabulary.json").read_text())
    ids = [vocabulary.index(piece) for piece in found.hypotheses[0]]
    assert ids == pipeline.generate(TEXTS[:1]).ids[0, 0, : len(ids)].tolist()


def test_a_gpu_that_cannot_be_used_is_replaced_by_the_cpu(tmp_path, monkeypatch, caplog):
    pipeline = translator(num_layers=1)
    monkeypatch.setattr(ctranslate2, "get_cuda_device_count", lambda: 1)

    def without_driver(device):
        if device == "cuda":
            raise RuntimeError("CUDA driver version is insufficient")
        return {"float32"}

    monkeypatch.setattr(ctranslate2, "get_supported_compute_types", without_driver)
    _, engine = engine_of(pipeline, tmp_path)
    assert engine.device == "cpu"
    assert "CTranslate2 runs on the CPU, as it cannot use the GPU: CUDA driver" in caplog.text


FAMILIES = {
    "post-norm": lambda: translator(normalization="post", activation="gelu"),
    "learned positions": lambda: translator(
        position_encoding="learned", max_length=40, norm="rms", activation="swiglu", output_bias=True,
        embedding_norm=True, scale_embedding=False,
    ),
    "other decoder": lambda: translator(
        num_decoder_layers=1, num_decoder_heads=4, decoder_hidden_dim=8, position_layout="halves",
        activation="gelu_tanh",
    ),
    "fairseq positions": lambda: translator(position_layout="fairseq", shared_query_key=True),
    "T5": lambda: translator(models.T5, key_dim=4, num_heads=3, num_buckets=8, max_distance=12),
    "T5 1.1": lambda: translator(models.T5, key_dim=8, activation="geglu_tanh", tied=False),
    "GPT": writer,
    "GPT-1": lambda: writer(normalization="post"),
    "sandwich": lambda: writer(normalization="sandwich", activation="relu"),
    "ALiBi": lambda: writer(position_encoding="alibi"),
    "relative bias": lambda: writer(position_encoding=layers.RelativeBias(2, bidirectional=False)),
    "no positions": lambda: writer(position_encoding=None),
    "Llama": lambda: writer(models.Llama, num_heads=4, num_kv_heads=2),
    "Qwen 2": lambda: writer(models.Llama, num_heads=4, num_kv_heads=1, qkv_bias=True, tied=True),
    "Qwen 3": lambda: writer(models.Llama, num_heads=4, num_kv_heads=2, head_norm=True, key_dim=8),
    "Mistral": lambda: writer(models.Llama, relation=relations.SlidingWindow(40)),
    "SmolLM 3": lambda: writer(models.Llama, max_wavelength=[1e4, None]),
    "Llama 3": lambda: writer(
        models.Llama, scaling={"name": "llama3", "factor": 32.0, "original_length": 8}
    ),
    "part of a head": lambda: writer(models.Llama, rotary_dim=4),
    "Gemma": lambda: writer(models.Gemma, key_dim=8),
    "Gemma 2": lambda: writer(models.Gemma, key_dim=8, normalization="sandwich", soft_cap=5.0),
    "Gemma 3": lambda: writer(
        models.Gemma, key_dim=8, normalization="sandwich", head_norm=True, max_wavelength=[1e4, 1e2],
        scaling=[None, {"name": "linear", "factor": 8.0}],
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_ids_of_each_family_equal_the_pipeline(family, tmp_path):
    folder = exported(FAMILIES[family](), tmp_path)  # compared
    assert serving.verify(folder)["ctranslate2"]["graphs"]["ctranslate2"]["identical"] >= 3


@pytest.mark.slow
@pytest.mark.parametrize("search", ["greedy", *SEARCHES])
def test_outputs_scores_and_limits_equal_the_pipeline(search, tmp_path):
    pipeline = translator(sampler=SEARCHES.get(search, search), output_bias=True)
    served = serving.load(exported(pipeline, tmp_path), workers=2)
    texts, limits = [*TEXTS, "", "a"], [1, 2, 3, 8, 5, 6]
    assert served(texts, batch_size=2) == pipeline(texts)
    assert served("x") == pipeline("x")
    assert served(texts, prefixes=["h", "ho", "", "a", "", "b b"]) == pipeline(
        texts, prefixes=["h", "ho", "", "a", "", "b b"]
    )
    options = [{}, {"max_new_tokens": limits}, {"prefixes": ["h", "ho", "", "a", "", "b b"]}]
    if search == "greedy":
        options.append({"min_new_tokens": [0, 3, 8, 2, 1, 0]})
        assert [*served.stream("hola")] == [*pipeline.stream("hola")]
    else:
        with pytest.raises(ValueError, match="`min_new_tokens` needs greedy search"):
            served(texts, min_new_tokens=1)
        with pytest.raises(ValueError, match="`stream` needs greedy search"):
            [*served.stream("hola")]
    for given in options:
        found, expected = (each.generate(texts, **given) for each in (served, pipeline))
        np.testing.assert_array_equal(found.ids, expected.ids)
        np.testing.assert_array_equal(found.lengths, expected.lengths)
        np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-4, atol=1e-4)
    scores = [[row.score for row in each.score(["hola", "a"], ["que", ""])] for each in (served, pipeline)]
    np.testing.assert_allclose(*scores, rtol=1e-4)
    with pytest.raises(ValueError, match="`attributions` needs an engine that hides source tokens"):
        served.attributions("hola")


ENDING = {
    **{name: SEARCHES[name] for name in ("sums", "several")},
    "best of several": Beam(4, length_penalty=0.6, early_stopping=False),
    **{
        f"{beams} beams, {penalty}, {count}": Beam(
            beams, penalty, normalization="length", early_stopping="num_beams", num_return=count
        )
        for beams, penalty, count in ((2, 2.0, 1), (2, -0.5, 2), (2, 0.0, 2))
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("search", ENDING)
def test_beams_that_end_right_after_a_prefix_equal_the_pipeline(search, tmp_path):
    pipeline = translator(sampler=ENDING[search], output_bias=True, num_layers=1)
    tokenizer = serving.tokenizer_of(TOKENIZER.model_bytes, pipeline.export_config())
    found_lengths = []
    for seed in (0, 1, 6, 22, 25, 32):  # among them some where other numbers of hypotheses end the search
        random = np.random.default_rng(seed)
        bias = np.zeros(TOKENIZER.vocabulary_size)
        bias[[TOKENIZER.pad_id, TOKENIZER.start_id]] = -30
        bias[random.choice(range(70, 130), 6, replace=False)] = 6
        bias[TOKENIZER.end_id] = random.normal(6, 1)
        pipeline.model.output_bias.assign(bias)
        config, engine = engine_of(pipeline, tmp_path / str(seed))
        served = serving.pipelines.pipeline_of(engine, config, tokenizer)
        for prefixes in (["h", "ho", "x", "a"], [""] * 4):
            options = {"prefixes": prefixes, "max_new_tokens": [8, 1, 5, 7]}
            found, expected = (each.generate(TEXTS, **options) for each in (served, pipeline))
            np.testing.assert_array_equal(found.ids, expected.ids)
            np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-4, atol=1e-4)
            found_lengths += found.lengths.ravel().tolist()
    assert {1, 8} <= {*found_lengths}


@pytest.mark.parametrize("alpha", [-0.5, 0.6, 2.0])
def test_the_best_hypotheses_are_known_to_be_there_unless_they_may_lack(alpha):
    random, prefix, found = np.random.default_rng(0), 2, set()
    search = Search(3, 2, alpha, "length", "num_beams")
    for _ in range(300):
        lengths, sums = random.integers(1, 9, 5), -random.uniform(0.1, 9, 5)
        scores = sums / (lengths + prefix) ** alpha
        kept = np.argsort(-scores)[:3]  # of five hypotheses, CTranslate2 returns three
        best = kept[search.best(lengths[kept], sums[kept])]
        complete = set(best) == set(search.best(lengths, sums))
        may_lack = search.may_lack(lengths[kept], sums[kept], scores[kept], prefix)
        # The longest is always among those that are returned.
        if lengths.max() == lengths[kept].max():
            assert complete or may_lack
            found.add((complete, may_lack))
    assert len(found) > 1


@pytest.mark.slow
def test_scores_where_padding_is_probable_equal_the_pipeline(tmp_path):
    pipeline = translator(sampler=Beam(2, num_return=2), output_bias=True)
    bias = np.array(pipeline.model.output_bias)
    bias[TOKENIZER.pad_id] = 3
    pipeline.model.output_bias.assign(bias)
    found, expected = (
        each.generate(TEXTS) for each in (serving.load(exported(pipeline, tmp_path)), pipeline)
    )
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-4)


@pytest.mark.slow
def test_prompts_of_several_lengths_and_other_ends_equal_the_pipeline(tmp_path):
    probable = writer().generate(TEXTS).ids[:, 0, 2].tolist()
    constraints = [EndTokens(tuple({*probable})), MinNewTokens(2)]
    pipeline = writer().with_settings(constraints=constraints)
    served = serving.load(exported(pipeline, tmp_path))
    found, expected = (each.generate(TEXTS) for each in (served, pipeline))
    np.testing.assert_array_equal(found.ids, expected.ids)
    assert (found.lengths < 8).any()
    scores = [[row.score for row in each.score(["hola", "a"], ["que", ""])] for each in (served, pipeline)]
    np.testing.assert_allclose(*scores, rtol=1e-4)
    assert [*served.stream("hola")] == [*pipeline.stream("hola")]


@pytest.mark.slow
def test_precisions_are_models_of_their_own(tmp_path):
    folder = exported(translator(), tmp_path, None)
    report = serving.verify(folder)["ctranslate2"]
    assert {*report["precisions"]} == {"float16", "int8"}
    sizes = {path.parent.name: path.stat().st_size for path in folder.rglob("model.bin")}
    assert max(sizes["int8"], sizes["float16"]) < sizes["ctranslate2"]
    assert serving.load(folder, precision="int8", threads=1)("a b")
    exported(translator(), tmp_path / "float32")
    with pytest.raises(ValueError, match="`precision` must be one of the export's: float32. Received"):
        serving.load(tmp_path / "float32" / "it", precision="int8")


def test_requests_that_need_another_engine_are_answered_by_name(tmp_path):
    folder = exported(translator(output_bias=True), tmp_path)
    with pytest.raises(ValueError, match="`attributions` needs an engine that hides source tokens"):
        serving.load(folder).attributions("hola")

    async def requests(app):
        body = {"model": "it", "prompt": "a b", "logprobs": 2}
        answers = [
            await json_call(app, "POST", "/v1/completions", {**body, "stream": stream})
            for stream in (False, True)
        ]
        found = [await json_call(app, "GET", f"/v2/models/it{end}") for end in ("", "/config")]
        row = {"signature_name": "attributions", "instances": ["a b"]}
        return (
            answers,
            [each[1] for each in found],
            await json_call(app, "POST", "/v1/models/it:predict", row),
        )

    answers, described, (status, attributions) = run({"it": folder}, requests)
    for code, answer in answers:
        assert (code, answer["error"]["param"]) == (400, "logprobs")
        assert answer["error"]["message"].startswith("`logprobs` needs an engine that gives logits")
    assert {each["platform"] for each in described} == {described[1]["backend"]} == {"ctranslate2"}
    assert status in (400, 404)
    assert "score" in attributions["error"]
    with pytest.raises(ValueError, match="`precision` must be one of the export's: float32. Received"):
        versions.load(folder, 8, precision="float16")


def test_beams_name_greedy_search_for_a_minimum(tmp_path):
    served = serving.load(exported(translator(sampler=Beam(2), num_layers=1), tmp_path))
    message = r"`min_new_tokens` needs greedy search\. Received: the sampler 'beam'$"
    with pytest.raises(ValueError, match=message):
        served("a", min_new_tokens=1)


PUBLISHED = (
    *(f"{name}ForConditionalGeneration" for name in ("Bart", "M2M100", "MBart", "MT5", "Pegasus", "T5")),
    *(f"{name}ForCausalLM" for name in ("Gemma", "Llama", "SmolLM3")),
    "MarianMTModel",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_ids_of_published_architectures_equal_the_pipeline(name, tmp_path):
    pipeline = test_published_families.pipeline_of(name)
    texts = test_published_families.TEXTS
    folder = export.bundle(
        pipeline, tmp_path / "it", targets=["ctranslate2"], texts=texts, precisions=["float32"]
    )
    assert serving.load(folder)(texts) == pipeline(texts)


@pytest.mark.slow
@pytest.mark.parametrize("name", test_languages.NAMES)
def test_each_row_has_its_languages(name, tmp_path):
    pipeline = pipelines.from_hugging_face(test_languages.FOLDERS / name, max_new_tokens=8)
    pipeline = pipeline.with_settings(constraints=())  # mBART's forces the last token
    config, engine = engine_of(pipeline, tmp_path)
    tokenizer = serving.tokenizer_of(pipeline.tokenizer.model_bytes, config)
    served = serving.pipelines.pipeline_of(engine, config, tokenizer)
    texts, _ = test_languages.translations(name)
    codes = [*pipeline.languages]
    sources, targets = ([codes[(row + shift) % len(codes)] for row in range(len(texts))] for shift in (0, 1))
    chosen = {"source_language": sources, "target_language": targets}
    for options in ({}, {"prefixes": [each[:1] for each in texts]}):
        expected = np.asarray(pipeline.generate(texts, **chosen, **options).ids)
        np.testing.assert_array_equal(served.generate(texts, **chosen, **options).ids, expected)


UNSUPPORTED = {
    "the relation Full": lambda: translator(encoder_relation=relations.SlidingWindow(3, 3)),
    "a window of at least 38 tokens": lambda: writer(relation=relations.SlidingWindow(36)),
    "the score ScaledDotProduct": lambda: translator(score="cosine"),
    "the normalization pre or post": lambda: translator(normalization="sandwich"),
    "the activation relu, gelu": lambda: translator(activation="elu"),
    "bidirectional=False": lambda: writer(position_encoding="relative_bias"),
    "linear or Llama 3's scaling": lambda: writer(models.Llama, scaling={"name": "ntk", "factor": 2.0}),
    "one of Transformer, T5, GPT, Llama, Gemma, BERT, Whisper": lambda: pipelines.TextToText(
        models.Unlimiformer(translator().model, 8, 2), TOKENIZER, max_source_tokens=30
    ),
    "`sampler` must be greedy or beam search": lambda: translator(sampler=Sample()),
    "`early_stopping` must be True, False": lambda: translator(sampler=Beam(early_stopping="heuristic")),
    "`diversity` must be 0": lambda: translator(sampler=Beam(diversity=0.5)),
    "`constraints` must be among EndTokens, MinNewTokens for greedy": lambda: translator().with_settings(
        constraints=[NoRepeatNGram(2)]
    ),
    "`EndTokens` must have only the end token 3 for beam search.*Received: \\[65\\]": lambda: translator(
        sampler=Beam(2)
    ).with_settings(constraints=[EndTokens((3, 65))]),
    "`constraints` must be among EndTokens for beam": lambda: translator(sampler=Beam(2)).with_settings(
        constraints=[MinNewTokens(2)]
    ),
}


@pytest.mark.parametrize("message", UNSUPPORTED)
def test_unsupported_models_and_searches_are_rejected_before_a_file_is_written(message, tmp_path):
    with pytest.raises(ValueError, match=message):
        exported(UNSUPPORTED[message](), tmp_path)
    assert not [*tmp_path.iterdir()]


def test_a_missing_or_old_package_is_named(tmp_path, monkeypatch, capsys):
    pipeline = translator()
    monkeypatch.setattr(ctranslate2, "__version__", "4.6.1")
    with pytest.raises(ImportError, match=r"pip install ctranslate2\. Received: version 4\.6\.1"):
        exported(pipeline, tmp_path)
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(ImportError, match=r"of the extra \[ctranslate2\]"):
        exported(pipeline, tmp_path)
    pipeline.save(tmp_path / "saved")
    arguments = ["export", str(tmp_path / "saved"), str(tmp_path / "it"), "--formats", "ctranslate2"]
    assert commands.main(arguments) == 2
    assert "of the extra [ctranslate2]: pip install ctranslate2" in capsys.readouterr().err
    assert not (tmp_path / "it").exists()
