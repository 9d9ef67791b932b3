import importlib.util
import json
import pathlib
import sys

import keras
import numpy as np
import pytest

BENCHMARKS = pathlib.Path(__file__).resolve().parents[2] / "benchmarks"
pytestmark = pytest.mark.backend_neutral


@pytest.fixture(scope="module")
def benchmark():
    sys.path.insert(0, str(BENCHMARKS))  # it imports the module `measuring`
    try:
        spec = importlib.util.spec_from_file_location("inductive_bias", BENCHMARKS / "inductive_bias.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses look up their module
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(BENCHMARKS))
        sys.modules.pop("inductive_bias", None)


@pytest.fixture(scope="module")
def small(benchmark):
    return benchmark.Settings(
        sizes=(8, 16),
        seeds=1,
        updates=4,
        updates_between_validations=2,
        model_dim=16,
        hidden_dim=16,
        batch_size=8,
        validation_samples=16,
        test_samples=16,
        evaluation_batch=16,
    )


@pytest.fixture(params=["local", "graph"])
def task(request):
    return request.param


@pytest.fixture
def matrices(benchmark, small, task):
    """Return matrices(seed), which gives each relation as a matrix."""

    def of(seed):
        chosen = benchmark.relations_of(task, small, benchmark.random_of(task, seed, benchmark.GRAPH_STREAM))
        return {name: relation.matrix(small.num_positions) for name, relation in chosen.items()}

    return of


class TestRelations:
    @pytest.mark.parametrize("seed", range(3))
    def test_the_wrong_relation_is_disjoint_and_the_loose_relation_contains_the_right_one(
        self, benchmark, matrices, seed
    ):
        of = matrices(seed)
        right, wrong, loose = of[benchmark.RIGHT], of[benchmark.WRONG], of[benchmark.LOOSE]
        assert not (right & wrong).any()
        np.testing.assert_array_equal(np.sort(right.sum(1)), np.sort(wrong.sum(1)))
        np.testing.assert_array_equal(np.sort(right.sum(0)), np.sort(wrong.sum(0)))
        assert (right & ~loose).sum() == 0
        assert right.sum() < loose.sum() < of[benchmark.COMPLETE].sum() == right.size

    @pytest.mark.parametrize("seed", range(3))
    def test_the_graph_is_regular_with_long_edges(self, benchmark, small, seed):
        random = benchmark.random_of("graph", seed, benchmark.GRAPH_STREAM)
        right = benchmark.relations_of("graph", small, random)[benchmark.RIGHT].matrix(small.num_positions)
        assert set(right.sum(0)) == set(right.sum(1)) == {5}
        assert np.abs(np.subtract(*np.nonzero(right))).min() > small.bandwidth

    def test_different_seeds_draw_different_graphs(self, benchmark, small):
        drawn = [
            benchmark.random_graphs(small.num_positions, 3, 1, 1, np.random.default_rng(seed))
            for seed in (0, 0, 1)
        ]
        assert drawn[0] == drawn[1] != drawn[2]


class TestData:
    def test_labels_depend_on_exactly_the_related_positions(self, benchmark, small, matrices):
        matrix = matrices(0)[benchmark.RIGHT]
        n = small.num_positions
        tokens = np.random.default_rng(0).integers(0, 2, (500, n), dtype="int32")

        class Fixed:
            """A random generator that draws these tokens and no noise."""

            def __init__(self, tokens):
                self.tokens = tokens

            def integers(self, low, high, shape, dtype="int32"):
                return self.tokens

            def random(self, shape):
                return np.ones(shape)

        def labels(of):
            return benchmark.draw(matrix, len(of), 0.0, Fixed(of))[1]

        for j in range(n):
            flipped = tokens.copy()
            flipped[:, j] ^= 1
            depends = (labels(tokens) != labels(flipped)).any(0)
            np.testing.assert_array_equal(depends, matrix[:, j])

    def test_without_noise_a_label_is_the_majority(self, benchmark, matrices):
        matrix = matrices(0)[benchmark.RIGHT]
        tokens, labels = benchmark.draw(matrix, 50, 0.0, np.random.default_rng(0))
        for row, related in enumerate(matrix):
            ones = tokens[:, related].sum(1)
            odd = 2 * ones != related.sum()
            np.testing.assert_array_equal(labels[odd, row], (2 * ones > related.sum())[odd])

    def test_noise_lowers_the_best_accuracy_as_predicted(self, benchmark, small, matrices):
        matrix = matrices(0)[benchmark.RIGHT]
        tokens, noisy = benchmark.draw(matrix, 20_000, 0.3, np.random.default_rng(0))
        balance = (2 * tokens - 1) @ matrix.T
        assert np.mean(noisy == np.where(balance == 0, tokens, balance > 0)) == pytest.approx(0.85, abs=5e-3)
        expected = benchmark.own_token_accuracy(matrix, 0.3)
        assert np.mean(noisy == tokens) == pytest.approx(expected, abs=5e-3)

    def test_an_epoch_contains_each_sample_once(self, benchmark, small):
        blocks = list(benchmark.batches(16, small, np.random.default_rng(0)))
        assert [len(block) for block in blocks] == [16, 16]
        assert all(sorted(block) == list(range(16)) for block in blocks)


class TestModel:
    @pytest.mark.slow
    def test_outputs_depend_only_on_related_tokens(self, benchmark, small, task):
        relations = benchmark.relations_of(task, small, np.random.default_rng(0))
        models = {name: benchmark.build_model(relation, small, 0) for name, relation in relations.items()}
        n = small.num_positions
        flips = np.concatenate([np.zeros((1, n)), np.eye(n)]).astype("int32")  # in row j + 1, token j differs
        for name, model in models.items():
            outputs = keras.ops.convert_to_numpy(model(flips))
            changed = np.abs(outputs[1:] - outputs[0]).max(-1).T > 1e-6
            np.testing.assert_array_equal(changed, relations[name].matrix(n) | np.eye(n, dtype=bool))
        assert len({model.count_params() for model in models.values()}) == 1

    @pytest.mark.slow
    def test_initial_weights_do_not_depend_on_the_relation(self, benchmark, small, task):
        relations = benchmark.relations_of(task, small, np.random.default_rng(0))
        first, *others = (benchmark.build_model(relation, small, 7) for relation in relations.values())
        for other in others:
            for weight, other_weight in zip(first.get_weights(), other.get_weights(), strict=True):
                np.testing.assert_array_equal(weight, other_weight)


class TestRun:
    @pytest.mark.slow
    def test_models_of_every_size_are_trained_and_reported(self, benchmark, small, tmp_path, monkeypatch):
        pytest.importorskip("matplotlib")
        every = benchmark.relations_of

        def only_right(*arguments):  # compilation takes most of the time
            return {benchmark.RIGHT: every(*arguments)[benchmark.RIGHT]}

        monkeypatch.setattr(benchmark, "relations_of", only_right)
        tasks = benchmark.measure(small, [benchmark.GRAPH])
        right = tasks[benchmark.GRAPH]["relations"][benchmark.RIGHT]
        assert right["related_pairs"] == 5 * small.num_positions
        assert list(right["runs"]) == list(small.sizes)
        assert all(0 <= accuracy <= 1 for accuracy in right["mean"])
        assert right["standard_error"] == [0, 0]  # one seed
        assert all(0 < run["updates"] <= small.updates for runs in right["runs"].values() for run in runs)

        result = {"settings": {"sizes": list(small.sizes)}, "ceiling": 0.95, "tasks": tasks}
        result = json.loads(json.dumps(result))
        assert f"{100 * right['mean'][1]:.1f} ± 0.0" in benchmark.report(result)
        benchmark.plot(result).savefig(tmp_path / "drawn.png")
        assert (tmp_path / "drawn.png").stat().st_size > 10_000

    @pytest.mark.slow
    def test_every_run_starts_from_the_same_weights_and_optimizer(self, benchmark, small):
        relations = benchmark.relations_of("graph", small, np.random.default_rng(0))
        model = benchmark.build_model(relations[benchmark.RIGHT], small, 0)
        matrix = relations[benchmark.RIGHT].matrix(small.num_positions)
        data = {
            part: benchmark.draw(matrix, 16, 0.1, np.random.default_rng(stream))
            for stream, part in enumerate(("training", "validation", "test"))
        }
        initial, ends = model.get_weights(), []
        for _ in range(2):
            model.set_weights(initial)
            order = benchmark.batches(16, small, np.random.default_rng(3))
            benchmark.train(model, data, order, small)
            ends.append(model.get_weights())
        for first, second in zip(*ends, strict=True):
            np.testing.assert_allclose(first, second, atol=1e-6)
        assert any(np.abs(end - start).max() > 0 for start, end in zip(initial, ends[0], strict=True))
