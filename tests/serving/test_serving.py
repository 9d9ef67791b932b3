import json
import shutil
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import keras_transformer_serving as serving
from keras_transformer_serving.generation import padded


@pytest.fixture(scope="module")
def served(exported):
    return serving.load(exported)


def test_a_process_without_tensorflow_and_keras_gives_equal_outputs(exported, pipeline, texts):
    program = """
        import json, sys
        import keras_transformer_serving
        answers = keras_transformer_serving.load(sys.argv[1])(json.loads(sys.argv[2]))
        report = keras_transformer_serving.verify(sys.argv[1])
        heavy = [name for name in ("tensorflow", "keras", "jax", "tensorflow_text") if name in sys.modules]
        print(json.dumps([answers, report, heavy]))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(exported), json.dumps(texts)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answers, report, heavy = json.loads(done.stdout)
    assert answers == pipeline(texts)
    counts = {"identical": report["onnx"]["texts"], "near_ties": 0}
    assert report["onnx"]["texts"] == 8
    assert report["onnx"]["graphs"] == {"onnx_loop": counts, "onnx_steps": counts}
    assert heavy == []


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_outputs_equal_the_pipeline_for_any_batch_size(served, pipeline, texts, batch_size):
    assert served(texts, batch_size=batch_size) == pipeline(texts)


def test_ids_lengths_and_scores_equal_the_pipeline_outputs(served, pipeline, texts):
    found, expected = served.generate(texts), pipeline.generate(texts)
    np.testing.assert_array_equal(found["ids"], expected.best)
    np.testing.assert_array_equal(found["lengths"], expected.lengths[:, 0])
    np.testing.assert_allclose(found["scores"], expected.scores[:, 0], rtol=1e-4, atol=1e-4)
    assert {name: value.dtype.name for name, value in found.items()} == {
        "ids": "int32",
        "lengths": "int32",
        "scores": "float32",
    }


def test_a_string_input_gives_a_string(served, pipeline, texts):
    assert served(texts[0]) == pipeline(texts[0])
    assert served("") == ""


def test_an_empty_list_gives_an_empty_list(served):
    assert served([]) == []
    assert served.generate([])["ids"].shape == (0, 10)
    assert served.encode([]) == []


@pytest.mark.slow
def test_any_iterable_of_strings_is_accepted(served, pipeline, texts):
    assert served(one for one in texts[:3]) == pipeline(texts[:3])


@pytest.mark.parametrize("silent", ["", "  ", "☃", " ☃☃ "])
def test_texts_of_only_spaces_or_unknown_characters_give_an_empty_text(served, silent, pipeline):
    assert served([silent, "uno", silent]) == ["", pipeline("uno"), ""]


def test_the_loop_and_the_steps_give_the_same_ids(served, texts):
    ids, mask = padded(served.encode(texts), served.graphs.padding_value)
    np.testing.assert_array_equal(
        served.graphs.generate_by_steps(ids, mask), served.graphs.generate(ids)["ids"]
    )


def test_an_attention_mask_is_equivalent_to_the_padding_id(served, texts):
    ids, mask = padded(served.encode(texts), served.graphs.padding_value)
    garbage = np.where(mask, ids, 7)
    expected = served.graphs.generate(ids)["ids"]
    np.testing.assert_array_equal(served.graphs.generate(garbage, attention_mask=mask)["ids"], expected)


def test_padding_before_the_tokens_is_rejected_and_generates_nothing(served, texts):
    graphs = served.graphs
    ids, mask = padded(served.encode(["uno", "uno dos tres"]), graphs.padding_value)
    count = (mask[0] == 0).sum()
    ids[0], mask[0] = np.roll(ids[0], count), np.roll(mask[0], count)
    for function in (graphs.generate, graphs.generate_by_steps):
        with pytest.raises(ValueError, match=r"`input_ids` of an encoder–decoder .* after the tokens.*row 0"):
            function(ids)
    np.testing.assert_array_equal(graphs.run_loop(ids, mask, {})["lengths"] == 0, [True, False])


@pytest.mark.parametrize("broken", [None, 5, ["uno"]], ids=repr)
def test_values_other_than_strings_are_rejected_with_their_row(served, broken):
    with pytest.raises(TypeError, match=r"texts\[1\]"):
        served(["uno", broken])


def test_a_lone_surrogate_is_rejected_with_its_row(served):
    with pytest.raises(ValueError, match=r"surrogates.*texts\[1\]"):
        served(["uno", "a\ud800"])


def test_a_long_text_raises_the_error_of_the_pipeline(served, pipeline):
    messages = []
    for answer in (served, pipeline):
        with pytest.raises(ValueError, match=r"at most 200 tokens.*texts\[1\]") as caught:
            answer(["uno", "o" * 10_000])
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_returned_errors_and_truncated_texts_equal_the_pipeline(served, pipeline):
    texts = ["uno", "o" * 10_000, "a\ud800", "", "uno dos " * 200]
    for options in ({}, {"truncate": True}):
        found, expected = (each(texts, errors="return", **options) for each in (served, pipeline))
        assert list(map(repr, found)) == list(map(repr, expected))
    assert served(texts[-1], truncate=True) == pipeline(texts[-1], truncate=True)


@pytest.mark.parametrize("batch_size", [0, -1])
def test_a_batch_size_below_one_is_rejected(served, batch_size):
    with pytest.raises(ValueError, match="`batch_size` must be a positive integer"):
        served(["uno"], batch_size=batch_size)


@pytest.mark.parametrize("kind", ["absent", "empty", "file"])
def test_folders_that_are_not_exports_are_rejected_by_name(tmp_path, kind):
    if kind == "empty":
        (tmp_path / kind).mkdir()
    elif kind == "file":
        (tmp_path / kind).write_text("")
    with pytest.raises(FileNotFoundError, match=f"`folder` must be an export.*{kind}"):
        serving.load(tmp_path / kind)


def test_an_export_without_onnx_graphs_is_rejected(damaged):
    from keras_transformer_serving import files, manifest

    shutil.rmtree(damaged / "onnx")
    entries = serving.Bundle(damaged).manifest["files"]
    left = {name: entry for name, entry in entries.items() if not name.startswith("onnx/")}
    files.write_json(damaged / "manifest.json", manifest.sealed({}, left, None))
    with pytest.raises(FileNotFoundError, match="`folder` must be an export with a part that runs"):
        serving.load(damaged)


@pytest.mark.parametrize(
    "name", ["onnx/generate_greedy.onnx", "config.json", "tokenizer/sentencepiece.model"]
)
def test_load_detects_damaged_and_missing_files(damaged, name):
    content = bytearray((damaged / name).read_bytes())
    content[len(content) // 2] ^= 0x10
    (damaged / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"{name}.*damaged"):
        serving.load(damaged)
    (damaged / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"{name}.*missing"):
        serving.load(damaged)


def test_a_tokenizer_outside_the_export_is_rejected(damaged):
    from keras_transformer_serving import files, manifest

    shutil.copy(damaged / "tokenizer" / "sentencepiece.model", damaged.parent / "outside.model")
    config = {**serving.Bundle(damaged).config, "tokenizer_file": "../../outside.model"}
    files.write_json(damaged / "config.json", config)
    entries = serving.Bundle(damaged).manifest["files"]
    for name, more in [("config.json", {}), ("tokenizer/../../outside.model", entries)]:
        more = {**more, name: manifest.entry_of(damaged / name)}
        files.write_json(damaged / "manifest.json", manifest.sealed({}, {**entries, **more}, None))
        with pytest.raises((FileNotFoundError, ValueError), match=r"\.\./\.\./outside\.model"):
            serving.load(damaged)


def test_a_loop_graph_without_step_graphs_raises_a_parity_error(damaged):
    """`verify` runs every graph that was compared at export."""
    from keras_transformer_serving import files, manifest

    reports = files.read_json(damaged / "parity.json")
    del reports["onnx"]["graphs"]["onnx_loop"]
    files.write_json(damaged / "parity.json", reports)
    entries = serving.Bundle(damaged).manifest["files"]
    entries["parity.json"] = manifest.entry_of(damaged / "parity.json")
    files.write_json(damaged / "manifest.json", manifest.sealed({}, entries, None))
    with pytest.raises(serving.ParityError, match=r"must have the graphs \['onnx_steps'\]"):
        serving.verify(damaged)


def test_a_damaged_step_graph_is_detected_on_first_use(damaged, texts):
    served = serving.load(damaged)
    (damaged / "onnx" / "optimum" / "decoder_model_merged.onnx").write_bytes(b"")
    assert served("uno")
    with pytest.raises(ValueError, match=r"decoder_model_merged\.onnx.*damaged"):
        served.graphs.generate_by_steps(*padded(served.encode(["uno"]), 0))


def test_execution_providers_can_be_chosen(exported, pipeline):
    served = serving.load(exported, providers=["CPUExecutionProvider"])
    assert served.graphs.session("generate_greedy").get_providers() == ["CPUExecutionProvider"]
    assert served("uno dos") == pipeline("uno dos")


@pytest.mark.slow
def test_tags_and_terms_of_glossaries_are_placed_as_by_the_pipeline(served, pipeline):
    texts = [
        "<p>uno <b>dos</b> tres</p> <ul><li>la <i>casa</i> {x} azul<li>el &amp; perro</ul>",
        "",
        "<p></p>",
    ]
    texts += ["la <b>casa</b> azul", "{x} uno {y} dos", "El <u>perro <i>y</i></u> la casa."]
    terms = {"casa": "xyz", "perro": "uno"}
    for options in (
        {"tag_handling": "html"},
        {"glossary": terms},
        {"tag_handling": "html", "glossary": terms, "glossary_mode": "soft"},
        {"tag_handling": "html", "long_texts": "split"},
    ):
        assert served(texts, **options) == pipeline(texts, **options)


@pytest.mark.slow
def test_server_and_saved_model_signatures_give_equal_outputs(served, pipeline, texts):
    import tensorflow as tf

    from keras_transformer_serving.server import generating

    assert served.graphs.has_steps
    signatures, graphs = generating.signatures(served), pipeline.signatures()
    assert set(signatures) == {*graphs, "attributions"}  # only on the server
    del signatures["attributions"]
    given = [*texts, "", "o" * 10_000, b"\xff", "uno", "uno"]
    columns = {
        "text": given,
        "target": [*(text[:3] for text in reversed(texts)), "uno", "uno", "uno", "", b"\xff"],
        "max_new_tokens": [*(1 + row % 10 for row in range(len(given) - 2)), 11, 3],
        "min_new_tokens": [*(row % 4 for row in range(len(given) - 2)), 0, -1],
    }
    for name, served_signature in signatures.items():
        inputs = [spec.name for spec in graphs[name].inputs]
        names = [tensor.name for tensor in served_signature.inputs]
        only_on_the_server = {"long_texts", "tag_handling", "placeholders", "glossary", "glossary_mode"}
        assert [each for each in names if each not in only_on_the_server] == inputs
        of_signature = {each: columns[each] for each in inputs}
        expected = graphs[name].function(*(tf.constant(values) for values in of_signature.values()))
        rows = served_signature.rows(of_signature, "{}[{}]".format)
        found = served_signature.stack(
            served_signature.compute(rows, served.text_methods.methods, served.engine, 4)
        )
        assert set(found) == set(expected)
        for tensor in served_signature.outputs:
            values = expected[tensor.name].numpy()
            assert tensor.dtype == expected[tensor.name].dtype.name
            if tensor.dtype == "string":
                assert found[tensor.name].tolist() == [value.decode() for value in values.tolist()]
            else:
                np.testing.assert_allclose(found[tensor.name], values, rtol=1e-4, atol=1e-4)
