"""Invalid arguments of data, losses and metrics."""

import dataclasses

import numpy as np
import tensorflow as tf

from keras_transformer import data, models, text, training

from .table import POSITIVE, InvalidCalls, must

invalid = InvalidCalls()
IDS = np.full((2, 5), 7, "int32")
LABELS = "`y_true` must have the shape of `y_pred` without its last axis. Received: y_true.shape="


@dataclasses.dataclass
class Unbounded:
    """A tokenizer with ids beyond its vocabulary size."""

    tokenizer: text.ByteTokenizer = dataclasses.field(default_factory=text.ByteTokenizer)
    vocabulary_size: int = 60

    def __getattr__(self, name):
        return getattr(self.tokenizer, name)


invalid(
    lambda files: training.average_checkpoints(models.GPT(40, 1, 2, 8), files),
    {},
    *[
        ({"files": [name]}, f"`files` must be existing files. Received: files[0]={name!r}")
        for name in ("nope.h5", ".")
    ],
    name="average_checkpoints",
    error=FileNotFoundError,
)
invalid(
    lambda **labels: training.LabelSmoothedCrossentropy()(**labels),
    {"y_true": IDS},
    ({"y_pred": np.ones((2, 4, 9), "float32")}, f"{LABELS}(2, 5), y_pred.shape=(2, 4, 9)"),
    name="loss",
)
invalid(
    lambda **labels: training.TokenAccuracy()(**labels),
    {"y_pred": np.ones((2, 5, 9), "float32")},
    ({"y_true": IDS[0]}, f"{LABELS}(5,)"),
    name="metric",
)
invalid(training.LabelSmoothedCrossentropy, {}, must("be in [0, 1)", smoothing="0.1"))
invalid(training.TransformerSchedule, {}, must("be positive", model_dim="16"))
OUTSIDE = "`tokenizer` must have ids in [0, 60), its vocabulary. Received: 101 at row 0, column 0"
invalid(
    lambda texts: data.language_modeling(texts, Unbounded(), length=4),
    {},
    ({"texts": ["ab", "b\u00f1"]}, OUTSIDE),
    name="language_modeling",
)
invalid(
    lambda pairs: data.translation_pairs(pairs, Unbounded()),
    {},
    ({"pairs": [("!", "ab")]}, OUTSIDE),
    name="translation_pairs",
)
invalid(
    data.image_batches,
    {"images": np.zeros((2, 4, 4, 1))},
    ({"labels": np.array([0, np.nan])}, "`labels` must be finite. Received: nan at row 1"),
)


PAIRS = [("uno", "one"), ("dos", "two")]
BYTES = text.ByteTokenizer()
WORDS = text.WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abc"])
STRINGS = tf.data.Dataset.from_tensor_slices((["a"], ["b"]))
BATCH_SIZE = must(POSITIVE, batch_size=0)

invalid(
    lambda pairs: data.translation_pairs(pairs, BYTES),
    {},
    *[
        must("hold at least one pair", pairs=[]),
        ({"pairs": STRINGS.take(0)}, "`pairs` must hold at least one pair"),
    ],
    ({"pairs": STRINGS.repeat()}, "`pairs` must be finite… Received: "),
    *[({"pairs": pairs}, "…two string scalars") for pairs in (STRINGS.batch(2), tf.data.Dataset.range(3))],
    ({"pairs": [("a", "b"), ("a",)]}, "`pairs` must be (source, target)… Received: pairs[1]=('a',)"),
    *[({"pairs": [pair]}, f"…pairs[0]={pair!r}") for pair in (("a", 3), 3)],
    ({"pairs": [("a", "b"), ("a", "b\ud800")]}, r"…lone surrogates…pairs[1]=…with '\ud800'"),
    ({"pairs": "."}, "`pairs` must name files. Received: '.', a directory"),
    type_errors=[must("be", pairs=None), must("be", pairs={"a": "b"})],
    name="translation_pairs",
)
invalid(
    lambda pairs: data.translation_pairs(pairs, BYTES),
    {},
    ({"pairs": "missing.tsv"}, "`pairs` must name files that exist. Received: 'missing.tsv'"),
    name="translation_pairs",
    error=FileNotFoundError,
)
invalid(
    lambda **options: data.translation_pairs(PAIRS, BYTES, **options),
    {},
    ({"columns": (0, 1)}, "`columns` must be None unless `pairs` names files"),
    must("have 2 items", columns=0),
    must("be one of", on_error="ignore"),
    BATCH_SIZE,
    must(POSITIVE, batch_tokens=0),
    (
        {"batch_size": 64, "batch_tokens": 100},
        "…must not both be passed. Received: batch_size=64, batch_tokens=100",
    ),
    *[must("be", length_buckets=buckets) for buckets in (0, (), (8, 8), (0, 8), 2.5)],
    *[
        must("…whose last is the longest", length_buckets=buckets)
        for buckets in ((16, 8), [(8, 32), (32, 8)])
    ],
    must("…different lengths or… up to max_length=128", length_buckets=(8, 256)),
    must("…(source, target) lengths", length_buckets=[(8, 8), (16, 16, 16)]),
    must(POSITIVE, pad_to_multiple_of=0),
    ({"max_length": 2}, "`max_length` …must be at least …2 pairs. Received: a limit of 2"),
    *[must("be…integer", **{name: None}) for name in ("seed", "max_length")],
    *[must("be in [0, 1)", sampling=rate) for rate in (-0.1, 1.0, "0.1", True)],
    name="translation_pairs",
)
invalid(
    lambda **options: data.tagging([["a"]], [[0]], WORDS, **options),
    {},
    BATCH_SIZE,
    must("be at least 5", max_length=4),
    ({"length_buckets": [4]}, "`length_buckets` must be at least 5… Received: "),
    (
        {"length_buckets": [9], "max_length": 8},
        "`length_buckets` must be a positive integer, or different lengths up to max_length=8 whose last",
    ),
    name="tagging",
)
LENGTHS = "must have the same length"
invalid(
    lambda texts, labels: data.classification(texts, labels, WORDS),
    {},
    ({"texts": ["a", ("a", "b")], "labels": [0, 1]}, "`texts` must all be… Received: texts[1]=('a', 'b')"),
    ({"texts": [("a", "b", "c")], "labels": [0]}, "`texts` must all be strings, or all pairs… Received: "),
    ({"texts": [3], "labels": [0]}, "… Received: texts[0]=3"),
    (
        {"texts": ["a"], "labels": [0, 1]},
        f"`texts` and `labels` {LENGTHS}… Received: 1 texts, and more labels",
    ),
    ({"texts": [], "labels": []}, f"`texts` and `labels` {LENGTHS}, which must not be 0. Received: none"),
    ({"texts": ["a"], "labels": ["positive"]}, "…non-negative integers… or finite floats"),
    name="classification",
)
invalid(
    lambda texts: data.classification(texts, [0], WORDS),
    {},
    must("be an iterable", texts="a b"),
    name="classification",
    error=TypeError,
)
invalid(
    lambda sentences, tags: data.tagging(sentences, tags, WORDS),
    {},
    ({"sentences": [["a"]], "tags": []}, "…which must not be 0. Received: 0 tags, and more sentences"),
    ({"sentences": [], "tags": []}, "…which must not be 0. Received: none"),
    (
        {"sentences": ["a b"], "tags": [[0, 1]]},
        "`sentences` must be sequences of words… Received: sentences[0]='a b'",
    ),
    ({"sentences": [["a", " "]], "tags": [[0, 1]]}, "…strings that are not empty… Received: "),
    ({"sentences": [[]], "tags": [[]]}, "…sentences[0]=[]"),
    (
        {"sentences": [["a"]], "tags": [[0, 1]]},
        "`tags` must hold a tag for each word… Received: 1 words…",
    ),
    *[
        ({"sentences": [["a"]], "tags": [[tag]]}, "`tags` must be non-negative integers. Received: tags[0]=")
        for tag in (-100, "O")
    ],
    name="tagging",
)
invalid(
    lambda questions, contexts, answers: data.questions(questions, contexts, answers, WORDS),
    {"questions": ["a"], "contexts": ["b c"], "answers": [None]},
    ({"answers": []}, f"…{LENGTHS}… Received: 0 answers, and more questions and contexts"),
    ({"questions": [3]}, "`questions` must be strings. Received: questions[0]=3"),
    ({"contexts": [None]}, "`contexts` must be strings. Received: contexts[0]=None"),
    ({"contexts": [" "]}, "`contexts` must each hold a word. Received: contexts[0]=' '"),
    ({"answers": [("c", 1)]}, "…at their starts. Received: answers[0]=('c', 1), …has ' c'"),
    ({"answers": [("c", -1)]}, "…at their starts. Received: answers[0]=('c', -1)"),
    ({"answers": ["c"]}, "…tuples of text and start, or None. Received: answers[0]='c'"),
    name="questions",
)
invalid(
    lambda examples=("a",), labels=(0,), task="classification", **options: data.fine_tuning(
        list(examples), labels, BYTES, 2, task=task, **options
    ),
    {},
    must("be one of", task="regression"),
    *[
        ({"labels": labels}, "… Received: 1 examples, and more labels")
        for labels in ([0, 1], [[0, 1], [1, 0]])
    ],
    ({"labels": 1}, "…0 labels, and more examples"),
    (
        {"examples": [], "labels": []},
        f"`examples` and `labels` {LENGTHS}, which must not be 0. Received: none",
    ),
    *[
        ({"labels": [label]}, "`labels` must be non-negative integers… Received: ")
        for label in (-1, float("nan"), [0, 2], [[1]])
    ],
    *[
        (
            {"task": "multiple_choice", "examples": [("a", ["b"])], "labels": labels},
            "…non-negative integers. Received",
        )
        for labels in ([0.5], [[1]])
    ],
    *[
        (
            {"task": task, "examples": [example]},
            f"`examples` must be {expectation}… Received: examples[0]={example!r}",
        )
        for task, example, expectation in (
            ("classification", ("a", "b"), "texts"),
            ("entailment", "ab", "pairs of texts"),
            ("similarity", ("a", "b", "c"), "pairs of texts"),
            ("multiple_choice", ("a", "bc"), "(context, answers)"),
            ("multiple_choice", ("a", []), "(context, answers)"),
        )
    ],
    (
        {"task": "multiple_choice", "examples": [("a", ["b"])], "labels": [1]},
        "…labels[0]=1 of 1 answers",
    ),
    must("be three different ids", special_ids=(300, 300, 301)),
    ({"special_ids": (0, 300, 301)}, "`tokenizer` must have a padding value that is not a special token"),
    name="fine_tuning",
)
invalid(lambda **options: data.fine_tuning(["a"], [0], BYTES, **options), {}, BATCH_SIZE, name="fine_tuning")
invalid(
    lambda examples: data.fine_tuning(examples, [0], BYTES),
    {},
    must("be an iterable", examples="text"),
    name="fine_tuning",
    error=TypeError,
)
IMAGES = np.zeros((5, 6, 6, 1))
invalid(
    data.image_batches,
    {"images": IMAGES, "labels": np.zeros(5, int)},
    ({"images": IMAGES[..., 0]}, "`images` must be… Received: …(5, 6, 6)"),
    *[
        ({"labels": labels}, f"`images` must be… Received: …labels.shape={labels.shape}")
        for labels in (np.zeros(4, int), np.zeros((5, 3, 1)))
    ],
    ({"images": IMAGES[:0], "labels": np.zeros(0, int)}, "…n > 0… Received: "),
    must("be at least 1", batch_size=0),
    must("be at least 0", shift=-1),
    ({"shard": (0, 6)}, "`shard` must leave a row for each worker. Received: 6 workers"),
)
invalid(
    lambda pairs=PAIRS, **options: data.instruction_tuning(pairs, BYTES, **options),
    {},
    must("be at least 6, the number of tokens of the shortest of the 2 pairs", length=1),
    must(POSITIVE, length=0),
    BATCH_SIZE,
    ({"pairs": []}, "`pairs` must hold at least one pair"),
    ({"pairs": [("", "")]}, "`pairs` must hold at least one token. Received: none"),
    *[
        ({"pairs": [pair]}, f"…two str each. Received: pairs[0]={pair!r}")
        for pair in (("a", "b", "c"), {"prompt": "a", "completion": "b"}, ("a", 3))
    ],
    name="instruction_tuning",
)
invalid(
    lambda pairs: data.instruction_tuning(pairs, BYTES),
    {},
    ({"pairs": ["one"]}, "`pairs` must name files that exist. Received: 'one'"),
    name="instruction_tuning",
    error=FileNotFoundError,
)
invalid(
    lambda texts=("to be", "or"), tokenizer=BYTES, **options: data.language_modeling(
        texts, tokenizer, **options
    ),
    {},
    BATCH_SIZE,
    must(POSITIVE, length=0),
    *[({"texts": texts}, "`texts` must hold at least one token. Received: none") for texts in (["", ""], [])],
    (
        {"tokenizer": text.ByteTokenizer({"pad": "<pad>"})},
        "`tokenizer` must have end_id. Received: end_id=-1",
    ),
    *[must("be (index, count)", shard=shard) for shard in ((2, 2), (-1, 2), 1, (0, 0), (0.0, 1), (0, 1, 2))],
    (
        {"separate": True, "sampling": 0.1},
        "`sampling` must be 0 for a `tokenizer`… Received: …a ByteTokenizer",
    ),
    (
        {"tokenizer": text.BytePairTokenizer.train(["ab ab"], 261), "sampling": 0.1},
        "`sampling` must be 0 unless `separate=True`… Received: sampling=0.1",
    ),
    name="language_modeling",
)
invalid(
    lambda texts=("to be", "or"), **options: data.language_modeling(texts, BYTES, **options),
    {},
    must("be an iterable of strings; ", texts="one"),
    *[must("be a path or None", cache_dir=folder) for folder in (3, "")],
    name="language_modeling",
    error=TypeError,
)
invalid(
    lambda texts=("a",), **options: data.masked_language_modeling(texts, WORDS, **options),
    {},
    ({"texts": [""]}, "`texts` must hold at least one token. Received: none"),
    must("be", rate=1.0),
    must("be at least 1", batch_size=0),
    must("be at least 5", max_length=4),
    name="masked_language_modeling",
)
invalid(
    lambda documents: data.next_sentences(documents, WORDS),
    {},
    ({"documents": [["a", "b"]]}, "`documents` must hold at least two… Received: 1 doc"),
    ({"documents": [["a"], ["b"]]}, "`documents` must hold at least two… Received: 2 documents"),
    name="next_sentences",
)
ROLES = {"pad": "[PAD]", "unknown": "[UNK]", "start": "[CLS]", "end": "[SEP]"}
invalid(
    lambda tokenizer: data.masked_language_modeling(["a"], tokenizer),
    {},
    (
        {"tokenizer": text.WordPieceTokenizer([*ROLES.values(), "a"], special_tokens=ROLES)},
        "`tokenizer` must have… Received: …mask_id=-1",
    ),
    name="masked_language_modeling",
)
invalid(
    lambda tasks={"a: ": PAIRS}, **options: data.multi_task_pairs(tasks, BYTES, **options),
    {},
    ({"tasks": {}}, "`tasks` must hold at least one task. Received: none"),
    must(POSITIVE, limit=0),
    must("be positive", temperature=0.0),
    ({"tasks": {"a: ": []}}, "`pairs` must hold at least one pair"),
    ({"max_length": 6}, "`max_length` … at least 7, …2 pairs of task 'a: '. Received: a limit of 6"),
    ({"batch_size": 8, "batch_tokens": 8}, "`batch_size` and `batch_tokens` must not both be passed"),
    name="multi_task_pairs",
)
invalid(
    lambda tasks: data.multi_task_pairs(tasks, BYTES),
    {},
    ({"tasks": [("a", "b")]}, "`tasks` must be a mapping"),
    name="multi_task_pairs",
    error=TypeError,
)
invalid(
    lambda texts=("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMN",), **options: data.span_corruption(
        texts, BYTES, **{"sentinels": [*range(400, 360, -1)], "max_length": 40, **options}
    ),
    {},
    ({"texts": [""]}, "`texts` must hold at least one token. Received: none"),
    must("be between 0 and 1", rate=0.0),
    must("be at least 1", mean_span=0.5, batch_size=0),
    must("be at least 3", max_length=2),
    ({"sentinels": [400]}, "`sentinels` must be at least 2 different ids… Received: 1 ids"),
    ({"sentinels": [400, 400]}, "…Received: 2 ids, 1 different"),
    ({"sentinels": [400, BYTES.end_id]}, "…neither special nor in any text… Received: "),
    (
        {"texts": ["ab"], "sentinels": BYTES.tokenize("b").numpy().tolist()},
        "…neither special nor in any text… Received: ",
    ),
    name="span_corruption",
)
invalid(
    lambda texts: data.span_corruption(texts, BYTES),
    {},
    must("be an iterable of strings", texts="abc"),
    name="span_corruption",
    error=TypeError,
)
CLASSES = tf.data.Dataset.from_tensors(([[1.0]], [1]))
invalid(
    lambda class_weight: data.with_class_weight(CLASSES, class_weight),
    {},
    *[
        ({"class_weight": weights}, "`class_weight` must have… Received: ")
        for weights in ({-1: 1.0}, {0.5: 1.0}, {0: -1.0}, {0: float("nan")}, {0: "1"})
    ],
    name="with_class_weight",
)
invalid(
    lambda dataset: data.with_class_weight(dataset, {0: 1.0}),
    {},
    *[
        ({"dataset": dataset}, "`dataset` must have classes… Received: ")
        for dataset in (CLASSES.map(lambda x, _: x), CLASSES.map(lambda x, y: (x, x)))
    ],
    name="with_class_weight",
)
invalid(
    data.with_lengths,
    {},
    *[
        (
            {"dataset": tf.data.Dataset.from_tensors((inputs, [1]))},
            "`dataset` must have inputs with ids… Received: ",
        )
        for inputs in ({"images": [[1.0]]}, [[1, 2]])
    ],
)
invalid(
    lambda share, examples=("a", "b"): data.split(list(examples), share),
    {"share": 0.5},
    must("be between 0 and 1", share=1),
    ({"examples": ["a", "a"]}, "…at least two distinct sources. Received: 2 examples with 1"),
    name="split",
)
invalid(
    data.read_examples,
    {},
    ({"paths": ["."]}, "`paths` must name files. Received: '.', a directory"),
    ({"paths": []}, "`paths` must hold at least one path"),
    name="read_examples",
)
invalid(
    data.read_examples,
    {},
    *[must("be a path or a list of paths", paths=paths) for paths in (None, 3, [3], [("a", "b")])],
    error=TypeError,
)
invalid(
    lambda **options: BYTES.sample(["a"], **{"rate": 0.1, "seed": [0, 0], **options}),
    {},
    ({}, "… Received: a ByteTokenizer"),
    must("be between 0 and 1", rate=1),
    name="sample",
)
