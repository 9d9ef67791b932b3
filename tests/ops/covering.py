"""The attention cases that are tested: axes, legal combinations, and covering sets of cases."""

import itertools
import random

AXES = {
    "kernel": ("dense", "chunked", "banded", "edges", "linear"),
    "relation": ("full", "causal", "window", "ring", "prefix", "strided", "global", "graph"),
    "score": (
        "dot product",
        "scale",
        "soft cap",
        "cosine",
        "rbf",
        "polynomial",
        "linear features",
        "additive",
        "gatv2",
        "bilinear",
        "gat",
    ),
    "dtype": ("float32", "float16", "bfloat16"),
    "mode": ("eager", "graph", "xla"),
    "lengths": ("37x37", "37x21", "21x37", "32x32", "5x5", "1x37", "37x1", "1x1"),
    "heads": ("4 heads", "2 of 4 heads", "1 of 4 heads"),
    "bias": ("", "bias TS", "bias N1S", "bias B1T1", "bias BNTS", "alibi", "t5", "t5 past"),
    "mask": ("", "mask TS", "mask 1NT1", "mask B11S", "mask BNTS"),
    "padding": ("", "padding"),
    "segments": ("", "segments"),
    "edges": ("", "edges"),
    "positions": ("", "shared positions", "positions", "query positions"),
    "dropout": ("", "dropout"),
    "value_size": ("", "wide values"),
}


def legal(case):
    """Return whether the values of a partial case can be combined."""
    has = case.get
    sides = has("lengths", "").split("x")
    if has("segments") and sides[0] != sides[-1]:
        return False
    if has("edges") and has("kernel", "dense") not in ("dense", "edges"):
        return False
    match has("kernel"):
        case "banded":
            return has("relation", "window") in ("window", "ring", "graph") and not has("positions")
        case "edges" if has("edges") == "":
            return has("relation", "graph") == "graph" and not has("positions")
        case "linear":
            extras = ("bias", "mask", "segments", "edges", "positions", "dropout")
            ragged = has("relation") == "causal" and sides[0] != sides[-1]
            return (
                has("relation", "full") in ("full", "causal")
                and has("score", "linear features") == "linear features"
                and not any(has(extra) for extra in extras)
                and not ragged
            )
    return True


def pairwise(axes, legal, wanted, seed=0):
    """Choose few cases greedily, in which every wanted legal pair of values occurs.

    Args:
        axes: the values of each axis.
        legal: a predicate on cases in which axes may be missing.
        wanted: stages, each a predicate on the names of two axes; later stages extend the cases of earlier ones.
        seed: the seed of random choices between equal candidates.

    Returns:
        The cases of each stage.
    """
    choice = random.Random(seed)
    uncovered, stages = set(), []

    def pairs(case):
        return set(itertools.combinations(sorted(case.items()), 2)) & uncovered

    def complete(case):
        """Return a legal case with a wanted pair, or None."""
        missing = [axis for axis in axes if axis not in case]  # not a set, whose order differs by process
        for axis in choice.sample(missing, len(missing)):
            options = [{**case, axis: value} for value in axes[axis] if legal({**case, axis: value})]
            if not options:
                return None
            choice.shuffle(options)
            case = max(options, key=lambda option: len(pairs(option)))
        return case

    seen = []
    for predicate in wanted:
        for (a, first), (b, second) in itertools.combinations(sorted(axes.items()), 2):
            if predicate(a, b):
                uncovered |= {((a, x), (b, y)) for x in first for y in second if legal({a: x, b: y})}
        for case in seen:
            uncovered -= pairs(case)
        stages.append([])
        while uncovered:
            pair = min(uncovered)
            found = [case for case in (complete(dict(pair)) for _ in range(8)) if case]
            if not found:
                uncovered.remove(pair)  # no legal case has both
                continue
            case = max(found, key=lambda case: len(pairs(case)))
            uncovered -= pairs(case)
            seen.append(case)
            stages[-1].append(case)
    return stages


def random_cases(axes, legal, product, seed=0):
    """Return one case for each legal combination of some axes, with random legal values of the others."""
    choice = random.Random(seed)
    cases = []
    for values in itertools.product(*(axes[axis] for axis in product)):
        case = dict(zip(product, values, strict=True))
        if not legal(case):
            continue
        for axis in axes:
            if axis not in case:
                case[axis] = choice.choice([one for one in axes[axis] if legal({**case, axis: one})])
        cases.append(case)
    return cases


def name(case):
    """Return a readable test id of letters and digits, equal in every worker."""
    return ",".join(case[axis].replace(" ", "-") for axis in AXES if case[axis])
