"""Print which keys of a `config.json` are read, checked, or known to have no effect, from the tables of `interop`.

.venv/bin/python benchmarks/parity/configurations.py            # as in benchmarks/parity/README.md
"""

from collections.abc import Iterator
from typing import Any

from keras_transformer.interop import settings
from keras_transformer.interop.architecture import Architecture, type_of
from keras_transformer.interop.hugging_face import ALL, ARCHITECTURES
from keras_transformer.models.problem_types import PROBLEM_TYPES


def table(model_type: str) -> str:
    """Return the keys of a model type as a Markdown table."""
    rows: dict[str, str] = {}
    for architecture in _of_type(model_type):
        for ours, theirs in architecture.settings.items():
            for key in _names(theirs):
                rows.setdefault(key, f"| `{key}` | {_accepted(architecture, ours, theirs, key)} |")
        for key, value in architecture.required.items():
            absent = "may be absent" if _may_be_absent(architecture, key) else "must be there"
            rows.setdefault(key, f"| `{key}` | {_shown(value)} alone; {absent} |")
        for key in (key for derived in architecture.derived for key in derived.settings):
            rows.setdefault(key, f"| `{key}` | see above; {_where_absent(architecture, key)} |")
    return "\n".join(["| key | accepted |", "|---|---|", *(rows[key] for key in sorted(rows))])


def without_effect(model_type: str) -> list[str]:
    """Return the keys of a model type that are known to change no output at inference."""
    return sorted(settings.without_effect(model_type))


def classes(model_type: str) -> list[str]:
    """Return the names of the classes of `transformers` that are read."""
    return [architecture.class_name for architecture in _of_type(model_type)]


def sample(architecture: Architecture) -> dict[str, Any]:
    """Return a `config.json` with all keys that are read into one argument each."""
    config = {**architecture.required, "eos_token_id": 8}
    for ours, theirs in architecture.settings.items():
        for key in _names(theirs):
            candidates = (8, 0.5, True, next(iter(architecture.activations)), "cls")
            values = (
                (None,)
                if ours == "problem_type"
                else (value for value in candidates if type_of(ours)[1](value))
            )
            config[key] = next(iter(values))
    return config


def _accepted(architecture: Architecture, ours: str, theirs: Any, key: str) -> str:
    text = type_of(ours)[0]
    if ours == "activation":
        text = f"one of {', '.join(f'`{name}`' for name in sorted(architecture.activations))}"
    elif ours == "problem_type":
        text = f"one of {', '.join(f'`{name}`' for name in PROBLEM_TYPES)}"
    others = [f"`{other}`" for other in _names(theirs) if other != key]
    if others:
        text += f", the same as {' and '.join(others)}"
    return f"{text}; {_where_absent(architecture, key)}"


def _where_absent(architecture: Architecture, key: str) -> str:
    if key in architecture.defaults:
        return f"{_shown(architecture.defaults[key])} where absent"
    return "may be absent" if _may_be_absent(architecture, key) else "must be there"


def _may_be_absent(architecture: Architecture, key: str) -> bool:
    config = sample(architecture)
    config.pop(key, None)
    try:
        architecture.arguments(config)
    except ValueError:
        return False
    return True


def _of_type(model_type: str) -> list[Architecture]:
    return [architecture for architecture in ALL if architecture.model_type == model_type]


def _names(theirs: str | tuple[str, ...]) -> tuple[str, ...]:
    return (theirs,) if isinstance(theirs, str) else theirs


def _shown(value: Any) -> str:
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def pages() -> Iterator[str]:
    """Yield a section for each model type."""
    for model_type in sorted(ARCHITECTURES):
        yield f"### {model_type}\n\nClasses: {', '.join(f'`{name}`' for name in classes(model_type))}."
        yield table(model_type)
        keys = ", ".join(f"`{key}`" for key in without_effect(model_type))
        yield f"Known to change no output: {keys}."


if __name__ == "__main__":
    print("\n\n".join(pages()))
