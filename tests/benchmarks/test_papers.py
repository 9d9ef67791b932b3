"""The commands that reproduce papers, on small data."""

import importlib.util
import json
import pathlib
import sys
import types

import numpy as np
import pytest

BENCHMARKS = pathlib.Path(__file__).resolve().parents[2] / "benchmarks"
WORDS = [
    "a",
    "fine",
    "film",
    "with",
    "heart",
    "and",
    "wit",
    ",",
    "but",
    "dull",
    "plot",
    "no",
    "fun",
    "at",
    "all",
]


def script(name, monkeypatch):
    for folder in (BENCHMARKS, BENCHMARKS / "papers"):  # of `measuring`, and of other papers
        monkeypatch.syspath_prepend(str(folder))
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / "papers" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module


def run(module, folder, *options, name=None, **settings):
    """Run a comparison; return the contents of its file."""
    numbers = [part for key, value in settings.items() for part in (f"--{key.replace('_', '-')}", str(value))]
    module.REFERENCE.main([*options, *numbers, "--output", str(folder)])
    path = folder / f"{name or pathlib.Path(module.__file__).stem}.json"
    return json.loads(path.read_text())["results"]


@pytest.fixture
def images(monkeypatch):
    """Replace MNIST by 40 random images, of which ten are tested."""
    from keras_transformer.datasets import mnist

    random = np.random.default_rng(0)
    images, labels = random.integers(0, 256, (40, 28, 28, 1)).astype("uint8"), random.integers(0, 10, 40)
    monkeypatch.setattr(mnist, "load_data", lambda folder: ((images, labels), (images[:10], labels[:10])))


@pytest.fixture
def captions(monkeypatch):
    """Replace Multi30k by 30 sentences and their copies, of which the second six are tested; return the sentences."""
    from keras_transformer.datasets import multi30k

    random = np.random.default_rng(0)
    sentences = [" ".join(random.choice(WORDS, 5)).title() for _ in range(30)]
    pairs = [(sentence, sentence) for sentence in sentences]
    monkeypatch.setattr(multi30k, "load_data", lambda *languages: (pairs, pairs[:6], pairs[6:12]))
    return sentences


@pytest.mark.slow
def test_cora_reproduction_reports_results(monkeypatch, tmp_path, capsys):
    from keras_transformer.datasets import planetoid

    random, number = np.random.default_rng(0), np.arange(30)
    labels = number % 2
    graph = planetoid.Graph(
        nodes=(random.random((30, 6)) < 0.3 + 0.4 * labels[:, None]).astype("float32"),
        edges=np.array([[i, (i + 2) % 30] for i in range(30)]),
        labels=labels,
        train=number < 10,
        validation=(number >= 10) & (number < 20),
        test=number >= 20,
    )
    cora = script("cora", monkeypatch)
    monkeypatch.setattr(planetoid, "load_data", lambda folder: graph)
    result = run(cora, tmp_path, "--seeds", "0", "1", patience=3, max_epochs=6)["GAT"]
    accuracies, test = [each["test"] for each in result["runs"]], result["over seeds"]["test"]
    assert test["mean"] == pytest.approx(np.mean(accuracies))
    assert test["standard_error"] == pytest.approx(np.std(accuracies, ddof=1) / 2**0.5)
    assert all(each["best_epoch"] <= each["epochs"] <= 6 for each in result["runs"])
    assert result["settings"]["learning_rate"] == 0.005
    assert result["published"] == {"mean": 83.0, "standard_deviation": 0.7, "runs": 100}
    assert "seeds" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.usefixtures("images")
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")
def test_mnist_reproduction_reports_results(monkeypatch, tmp_path, capsys):
    module = script("mnist", monkeypatch)
    small = {"patch_size": 14, "num_layers": 1, "batch_size": 8, "validation_images": 8, "minutes": 0.001}
    result = run(module, tmp_path, **small)["ViT"]
    assert result["runs"][0]["test"] in [pytest.approx(10 * right) for right in range(11)]
    assert result["runs"][0]["updates"] >= 1
    assert result["settings"]["patch_size"] == 14
    assert "97.8" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.usefixtures("images")
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")
def test_mixers_of_pixels_have_as_many_weights(monkeypatch, tmp_path):
    module = script("pixel_mnist", monkeypatch)
    small = {"size": 7, "num_layers": 1, "batch_size": 8, "validation_images": 8, "minutes": 0.001}
    results = run(module, tmp_path, "--seeds", "0", **small)
    counts = [each["runs"][0]["parameters"] for each in results.values()]
    assert len(counts) == 5
    assert max(counts) < 1.1 * min(counts)


@pytest.mark.slow
def test_shakespeare_reproduction_reports_results(monkeypatch, tmp_path, capsys):
    random = np.random.default_rng(0)
    text = " ".join(random.choice(WORDS, 400))
    (tmp_path / "input.txt").write_text(text)
    module = script("shakespeare", monkeypatch)
    sizes = {
        "num_layers": 1,
        "num_heads": 2,
        "model_dim": 16,
        "hidden_dim": 16,
        "length": 16,
        "batch_size": 4,
    }
    numbers = {**sizes, "steps": 4, "validate_every": 2, "dropout": 0.1}
    for config in ("ours", "gpu"):  # results that are not run again are kept
        options = ["--only", config, "--seeds", "0", "--data", str(tmp_path)]
        results = run(module, tmp_path, *options, **numbers)
    assert set(results) == {"ours", "gpu"}
    assert results["gpu"]["published"] == 1.4697
    assert results["ours"]["settings"]["activation"] == "swiglu"
    for each in results.values():
        losses = each["runs"][0]["losses"]
        assert list(losses) == ["2", "4"]
        final = each["over seeds"]["final"]["mean"]
        assert final == losses["4"] == pytest.approx(np.log(len(set(text))), abs=0.7)
    assert "1.4697" in capsys.readouterr().out


@pytest.mark.slow
def test_multi30k_reproduction_reports_results(captions, monkeypatch, tmp_path, capsys):
    pytest.importorskip("sacrebleu")
    module = script("multi30k", monkeypatch)
    sizes = {"num_layers": 1, "num_heads": 2, "model_dim": 16, "hidden_dim": 16, "vocabulary_size": 60}
    numbers = {**sizes, "batch_tokens": 100, "averaged": 2, "beams": 2, "epochs": 3}
    (result,) = run(module, tmp_path, **numbers)["en→de"]["runs"]
    assert result["epochs"] == len(result["history"]["val_loss"]) == 3
    validated = result["validation"]
    assert validated["last"]["checkpoints"] == 1
    assert validated["averaged"]["checkpoints"] == 2
    assert validated[result["chosen"]]["bleu"] == max(each["bleu"] for each in validated.values())
    assert result["test"]["examples"][0]["reference"] == captions[6].lower()
    assert "41.0" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")
def test_data_hunger_reports_results(monkeypatch, tmp_path):
    from keras_transformer.datasets import sst2

    random = np.random.default_rng(0)
    part = [(" ".join(random.choice(WORDS, 6)), int(label)) for label in random.integers(0, 2, 20)]
    module = script("data_hunger", monkeypatch)
    monkeypatch.setattr(sst2, "load_data", lambda folder: (part, part[:6], part[6:12]))
    small = {"vocabulary_size": 60, "num_heads": 2, "model_dim": 16, "hidden_dim": 32, "updates": 3}
    results = run(module, tmp_path, "--seeds", "0", "--sizes", "8", "20", **small)
    assert len(results) == 4
    for each in results.values():
        assert {"8 sentences", "20 sentences"} <= set(each["runs"][0])


@pytest.mark.slow
def test_one_block_fills_a_gap_only_with_both_sides(monkeypatch, tmp_path):
    results = run(script("bidirectionality", monkeypatch), tmp_path, "--seeds", "0")
    accuracy = {name: each["over seeds"]["accuracy"]["mean"] for name, each in results.items()}
    assert accuracy["BERT's mask"] > 95
    assert accuracy["GPT's mask"] == pytest.approx(20, abs=5)


@pytest.mark.slow
@pytest.mark.usefixtures("captions")
def test_recurrent_translation_reports_results(monkeypatch, tmp_path):
    pytest.importorskip("sacrebleu")
    module = script("recurrent_translation", monkeypatch)
    sizes = {"num_layers": 1, "num_heads": 2, "model_dim": 16, "hidden_dim": 16, "vocabulary_size": 60}
    numbers = {**sizes, "encoder_units": 8, "decoder_units": 12, "batch_tokens": 100, "minutes": 0.001}
    results = run(module, tmp_path, "--seeds", "0", **numbers)
    for each in results.values():
        (found,) = each["runs"]
        assert found["updates"] >= 1
        assert found["generated tokens/s"] > 0


def test_an_rnn_decodes_step_by_step_as_in_training(monkeypatch):
    module = script("recurrent_translation", monkeypatch)
    ids = types.SimpleNamespace(vocabulary_size=20, pad_id=0, start_id=2, end_id=3)
    model = module.RecurrentTranslator(
        ids, module.Settings(model_dim=8, encoder_units=4, decoder_units=6, dropout=0.0)
    )
    sources, targets = np.array([[5, 6, 3, 0], [7, 8, 9, 3]]), np.array([[2, 11, 12], [2, 13, 14]])
    logits = np.array(model({"source_ids": sources, "target_ids": targets}))
    padded = model({"source_ids": np.pad(sources, [[0, 0], [0, 2]]), "target_ids": targets})
    np.testing.assert_allclose(padded, logits, atol=1e-5)
    context, cache = model.encode(sources), model.empty_cache(2, 3)
    for index in range(3):
        places = {"cache_index": index, "positions": np.full((2, 1), index)}
        stepped, cache = model.step(targets[:, index : index + 1], cache, context, **places)
        np.testing.assert_allclose(stepped[:, 0], logits[:, index], atol=1e-5)


def test_bleu_is_case_insensitive_as_its_signature_says(monkeypatch):
    pytest.importorskip("sacrebleu")
    module = script("multi30k", monkeypatch)
    texts = ["ein hund läuft über die wiese.", "zwei kinder spielen ball."]
    found = module.bleu([text.title() for text in texts], texts)
    assert found["bleu"] == pytest.approx(100)
    assert {"case:lc", "tok:13a"} <= set(found["signature"].split("|"))
    assert module.bleu(texts[::-1], texts)["bleu"] < 10


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")
def test_sst2_reproduction_reports_results(monkeypatch, tmp_path, capsys):
    from keras_transformer.datasets import sst2

    random = np.random.default_rng(0)
    part = [(" ".join(random.choice(WORDS, 6)), int(label)) for label in random.integers(0, 2, 20)]
    module = script("sst2", monkeypatch)
    monkeypatch.setattr(sst2, "load_data", lambda folder: (part, part[:6], part[6:12]))
    sizes = {"vocabulary_size": 60, "num_layers": 2, "num_heads": 2, "model_dim": 16, "hidden_dim": 32}
    small = {**sizes, "batch_size": 4, "epochs": 1, "pretraining_epochs": 1}
    results = run(module, tmp_path, "--seeds", "0", **small)
    assert set(results) == {"bert", "bert_pretrained", "causal", "lstm"}
    counts = {name: each["runs"][0]["parameters"] for name, each in results.items()}
    assert counts["bert"] == counts["causal"]
    assert "pretraining" in results["bert_pretrained"]["runs"][0]
    assert "83.5" in capsys.readouterr().out


@pytest.fixture
def topics(tmp_path):
    """Files of labelled sentences with three classes, which are not numbers."""
    random, files = np.random.default_rng(0), {}
    for part, count in (("train", 24), ("validation", 6), ("test", 9)):
        labels = ["music", "film", "a book"] * count
        lines = [f"{label}\t{' '.join(random.choice(WORDS, 6))}" for label in labels[:count]]
        files[part] = tmp_path / f"{part}.tsv"
        files[part].write_text("\n".join(lines) + "\n")
    return files


def file_options(files):
    return [option for part, path in files.items() for option in (f"--{part}", str(path))]


def test_labelled_sentences_are_read_from_files(topics, monkeypatch):
    module = script("sst2", monkeypatch)
    topics["train"].write_text("b\tone\ttwo\na\t three \nb\tfour\u2028five\n")
    for part in ("validation", "test"):
        topics[part].write_text("a\tsix")
    parts, classes = module.read(list(topics.values()))
    assert classes == ["a", "b"]
    assert parts == [[("one\ttwo", 1), (" three ", 0), ("four\u2028five", 1)], [("six", 0)], [("six", 0)]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "a\tfine\ndull\n",
            "validation.tsv must have a label, a tab and a sentence.*Received: 'dull' in line 2",
        ),
        ("\tfine\n", "Received: '.tfine'"),
        ("a\t \n", "must have a label, a tab and a sentence"),
        ("\n", "validation.tsv must have .*Received: no line"),
        ("new\tfine\n", r"must have only the labels of .*train.tsv: \['a book', .*Received: \['new'\]"),
    ],
)
def test_files_without_labelled_sentences_are_rejected(topics, monkeypatch, content, message):
    module = script("sst2", monkeypatch)
    topics["validation"].write_text(content)
    with pytest.raises(ValueError, match=message):
        module.read(list(topics.values()))


def test_training_files_require_validation_and_test_files(topics, monkeypatch, tmp_path):
    module = script("sst2", monkeypatch)
    del topics["test"]
    with pytest.raises(ValueError, match="--train, --validation and --test go together"):
        run(module, tmp_path, "--name", "topics", *file_options(topics))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")
def test_text_classification_trains_on_files(topics, monkeypatch, tmp_path):
    module = script("sst2", monkeypatch)
    sizes = {"vocabulary_size": 60, "num_layers": 1, "num_heads": 2, "model_dim": 16, "hidden_dim": 32}
    options = ["--seeds", "0", "--only", "causal", "lstm", "--name", "topics", *file_options(topics)]
    small = {**sizes, "batch_size": 4, "epochs": 1, "pretraining_epochs": 1}
    results = run(module, tmp_path, *options, name="topics", **small)
    for each in results.values():
        (found,) = each["runs"]
        assert found["classes"] == ["a book", "film", "music"]
        assert found["files"]["test"] == str(topics["test"])
        assert "published" not in each
        assert found["test"] in [pytest.approx(100 * right / 9) for right in range(10)]


def test_an_lstm_has_as_many_weights_as_the_blocks(monkeypatch):
    settings = script("sst2", monkeypatch).Settings()
    units = sys.modules["sst2"].lstm_units(settings)
    d, h, n = settings.model_dim, settings.hidden_dim, settings.num_layers
    lstm = 4 * (units * units + d * units) + (n - 1) * 8 * units * units
    assert lstm == pytest.approx(n * (4 * d * d + 2 * d * h), rel=0.02)


@pytest.mark.parametrize("task", ["classification", "summary"])
def test_long_documents_have_their_facts_at_random_places(monkeypatch, task):
    module = script("long_documents", monkeypatch)
    settings = module.CASES[task]
    found = module.documents(settings, 200, (40, 64), 1.0, 0)
    places = set()
    for ids, facts, label in zip(*found, strict=True):
        end = ids.tolist().index(module.END)
        assert 39 <= end < 64
        assert not ids[end + 1 :].any()
        for fact in facts[facts[:, 0] > 0]:
            place = ids.tolist().index(fact[0])
            places.add(place)
            assert place + len(fact) <= end
            np.testing.assert_array_equal(ids[place : place + len(fact)], fact)
            assert (ids == fact[0]).sum() == 1
        if task == "classification":
            said = facts[1] if facts[1, 0] else facts[0]
            assert label == said[1] - module.FIRST_TOPIC - settings.topics
    assert len(places) > 20
    if task == "classification":
        assert 60 < (found.facts[:, 1, 0] > 0).sum() < 140
    some = module.documents(settings, 200, (40, 64), 0.5, 0)
    assert 0.4 < (some.facts[..., 0] > 0).mean() / (found.facts[..., 0] > 0).mean() < 0.6


def test_windows_of_long_documents_have_every_token_and_an_end(monkeypatch):
    module = script("long_documents", monkeypatch)
    ids = np.arange(10, 60)[None]
    ids[0, -1] = module.END
    for length, stride in ((16, 8), (16, 15), (64, 64)):
        parts = module.windows(ids, length, stride)[0]
        assert parts.shape[1] == length
        assert ((parts == module.END).sum(axis=1) == 1).all()
        assert {*parts[parts > module.END]} == {*range(10, 59)}
    assert module.summaries(np.array([[[4, 9], [0, 0], [6, 8]]])).tolist() == [[4, 9, 6, 8, module.END, 0, 0]]


def test_captions_to_order_have_their_words_in_another_order(monkeypatch):
    module = script("t5", monkeypatch)
    captions = [f"a b{n} c d e f" for n in range(50)]
    pairs = module.shuffled(captions, 0)
    assert [target for _, target in pairs] == captions
    assert all(sorted(source.split()[1:]) == sorted(target.split()) for source, target in pairs)
    assert sum(source == f"order: {target}" for source, target in pairs) < 5
    assert module.shuffled(captions, 0) == pairs != module.shuffled(captions, 1)


def test_unlimiformer_reports_mean_and_deviation_over_seeds(monkeypatch, tmp_path, capsys):
    module = script("unlimiformer", monkeypatch)
    percent = {0: 100.0, 5: 92.5, 10: 95.0}
    monkeypatch.setattr(module, "train", lambda _, seed: {"short sources": percent[seed]})
    results = run(module, tmp_path, "--seeds", "0", "5", "10", "--only", "exact")
    result = results["exact answers, %"]
    values = list(percent.values())
    assert [each["short sources"] for each in result["runs"]] == values
    found = result["over seeds"]["short sources"]
    assert found["mean"] == pytest.approx(np.mean(values))
    assert found["standard_deviation"] == pytest.approx(np.std(values, ddof=1))
    assert "95.83 ± 3.8" in capsys.readouterr().out


def citations():
    """Return a small graph in the form of Cora: two classes that cite themselves."""
    from keras_transformer.datasets import planetoid

    random, number = np.random.default_rng(0), np.arange(40)
    labels = number % 2
    pairs = np.array([[i, (i + step) % 40] for i in range(40) for step in (2, 4)])
    return planetoid.Graph(
        nodes=(random.random((40, 6)) < 0.3 + 0.4 * labels[:, None]).astype("float32"),
        edges=np.concatenate([pairs, pairs[:, ::-1]]).astype("int32"),
        labels=labels.astype("int32"),
        train=number < 10,
        validation=(number >= 10) & (number < 20),
        test=number >= 20,
    )


@pytest.mark.slow
def test_graph_tasks_report_results_beside_those_without_the_graph(monkeypatch, tmp_path):
    from keras_transformer.datasets import planetoid

    monkeypatch.setattr(planetoid, "load_data", lambda folder: citations())
    script("cora", monkeypatch)
    sizes = {"embedding_dim": 4, "head_dim": 4, "hidden_dim": 8, "epochs": 2, "graphs": 32, "graph_epochs": 1}
    results = run(script("graph_tasks", monkeypatch), tmp_path, "--seeds", "0", **sizes)
    assert set(results) == {"hyperedges", "links", "clusters", "molecules"}
    assert all({"test", "without graph"} <= result["over seeds"].keys() for result in results.values())


class TestGraphTasks:
    @pytest.fixture
    def module(self, monkeypatch):
        return script("graph_tasks", monkeypatch)

    def test_held_out_pairs_are_not_among_those_for_training(self, module):
        graph, settings = citations(), module.Settings(test_share=0.2, validation_share=0.1)
        parts = module.split(graph, settings, seed=0)
        numbers = {name: set(module.number(pairs, 40)) for name, pairs in parts.items() if name != "all"}
        linked = [numbers[name] for name in ("train", "validation", "test")]
        assert set().union(*linked) == set(parts["all"])
        assert sum(map(len, linked)) == len(graph.edges) / 2
        for name in ("validation", "test"):
            assert not numbers[f"not {name}"] & set(parts["all"])
            assert len(parts[f"not {name}"]) == len(parts[name])

    def test_only_molecules_of_the_second_class_have_a_nitro_group(self, module):
        graphs, labels = module.molecules(40, seed=0)
        atoms = graphs["nodes"].argmax(-1)
        assert (graphs["nodes"].sum((1, 2)) == graphs["padding_mask"].sum(1)).all()
        for graph, label in enumerate(labels):
            sources, targets = graphs["edges"][graph][graphs["edges"][graph, :, 0] >= 0].T
            oxygens = (atoms[graph, sources] == 2) & (atoms[graph, targets] == 1)
            assert (oxygens.sum() == 2) == label
            assert (graphs["nodes"][graph].sum(0)[1:] == [1, 2]).all()

    def test_a_hyperedge_has_a_paper_and_its_neighbours(self, module):
        graph = citations()
        incidences = module.hypergraph(graph)
        members = set(incidences[incidences[:, 1] == 5, 0])
        assert members == {5, *graph.edges[graph.edges[:, 1] == 5, 0]}


def test_compositions_follow_three_pairs(monkeypatch):
    module = script("higher_order", monkeypatch)
    pairs, labels = module.composition(module.Settings(length=4), 3, seed=0)
    for row, expected in zip(pairs.tolist(), labels.tolist(), strict=True):
        following = dict(row)
        assert [following[following[following[x]]] - 12 for x in range(4)] == expected


@pytest.mark.slow
@pytest.mark.usefixtures("images")
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")
def test_vision_reports_results_of_each_relation(monkeypatch, tmp_path):
    module = script("vision", monkeypatch)
    small = {"num_layers": 1, "model_dim": 8, "hidden_dim": 8, "batch_size": 8, "updates": 10}
    results = run(module, tmp_path, "--seeds", "0", **small)
    assert len(results) == 8
    assert len({result["runs"][0]["parameters"] for result in results.values()}) == 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")
@pytest.mark.usefixtures("captions")
def test_kernels_report_the_loss_of_each(monkeypatch, tmp_path):
    module = script("kernels", monkeypatch)
    small = {"num_layers": 1, "model_dim": 16, "hidden_dim": 16, "vocabulary_size": 60, "batch_tokens": 100}
    results = run(module, tmp_path, "--seeds", "0", "--only", "RBF", **small)
    assert set(results) == {"RBF, separate", "RBF, shared"}
    separate, shared = (result["runs"][0] for result in results.values())
    assert separate["parameters"] - shared["parameters"] == 2 * (16 * 16 + 16)
    assert 0 < shared["loss"] < 10


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")
def test_attribution_reports_accuracies_of_pruned_heads(monkeypatch, tmp_path):
    from keras_transformer.datasets import sst2

    parts = [
        [(" ".join(np.random.default_rng(i + seed).choice(WORDS, 5)), i % 2) for i in range(40)]
        for seed in range(3)
    ]
    monkeypatch.setattr(sst2, "load_data", lambda folder: parts)
    module = script("attribution", monkeypatch)
    small = {"vocabulary_size": 80, "num_heads": 2, "model_dim": 8, "hidden_dim": 8, "epochs": 1, "steps": 2}
    result = run(module, tmp_path, "--seeds", "0", **small)["pruned heads"]["runs"][0]
    for curve in result["curves"].values():
        assert list(curve) == ["0.0%", "50.0%", "75.0%", "87.5%", "100.0%"]
        assert (curve["0.0%"], curve["100.0%"]) == (result["all heads"], result["no heads"])


def test_speech_of_unseen_voices_in_noise_of_a_level(monkeypatch):
    module = script("speech", monkeypatch)
    voices = [name for names in module.VOICES.values() for name in names.split()]
    assert len(set(voices)) == len(voices)
    speech = np.sin(np.arange(16000) / 10).astype("float32")
    for level in (0.0, 20.0):
        noisy = module.with_noise(speech, level, np.random.default_rng(1))
        clean = module.with_noise(speech, None, np.random.default_rng(1))  # silence of the same duration
        assert noisy.shape == clean.shape
        power = np.mean(clean**2) / np.mean((noisy - clean) ** 2)
        np.testing.assert_allclose(10 * np.log10(power), level, atol=0.01)
    spoken = [module.Utterance("stop " * count, speech[: 4000 * count]) for count in (1, 2, 3, 4)]
    tokenizer = types.SimpleNamespace(tokenize=lambda text: [7] * len(text.split()))
    inputs, ids = next(module.batches(spoken, tokenizer, 2, clean=1.0, seed=0))
    for audio, length, row in zip(inputs["audio"], inputs["lengths"], ids, strict=True):
        assert not audio[length:].any()
        count = int((row == 7).sum())  # the labels are those of the audio of the row
        assert 4000 * count + 800 <= length <= 4000 * count + 8000


@pytest.mark.slow
def test_speech_reports_word_error_rates(monkeypatch, tmp_path):
    module = script("speech", monkeypatch)
    tones = {word: 200 + 150 * number for number, word in enumerate(module.WORDS)}

    def speak(text, *_):
        time = np.arange(3200) / module.RATE
        audio = [np.sin(2 * np.pi * tones[word] * time) for word in text.split()]
        return module.Utterance(text, np.concatenate(audio).astype("float32"))

    monkeypatch.setattr(module, "speak", speak)
    monkeypatch.setattr(module.shutil, "which", lambda name: name)
    small = {"utterances": 16, "test_utterances": 4, "num_layers": 1, "num_heads": 2, "model_dim": 16}
    result = run(module, tmp_path, "--seeds", "0", **small, steps=2, batch_size=4)["CTC"]["runs"][0]
    assert {f"word error rate, {level}" for level in ("clean", "20 dB", "10 dB")} <= result.keys()
    assert result["words"] >= 4
