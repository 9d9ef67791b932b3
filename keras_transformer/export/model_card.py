"""The model card of an export: its README.md."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from keras_transformer.export import card
from keras_transformer.export.signatures import MOST_CHARACTERS
from keras_transformer.export.targets import targets_of
from keras_transformer.interop.source import Source
from keras_transformer_serving.pipelines import languages

_NOT_SETTINGS = ("pipeline", "tokenizer_sha256", "empty_ids")
_MOST_EXAMPLES = 3
_MOST_LANGUAGES = 60
_LONG_TEXTS = {
    "refuse": "A longer text is an error, unless a call says otherwise.",
    "split": "A longer text is split into sentences. SavedModels raise an error instead.",
    "truncate": "A longer text is cut off.",
    "window": "A longer text is read in windows.",
}
# Licences by the names that the hub knows; any other one is "other" there, with its name.
_LICENSES = {
    "apache-2.0", "mit", "bsd-2-clause", "bsd-3-clause", "gpl-3.0", "agpl-3.0", "lgpl-3.0", "mpl-2.0", "unlicense",
    "openrail", "cc0-1.0", "cc-by-4.0", "cc-by-sa-4.0", "cc-by-nc-4.0", "cc-by-nc-sa-4.0", "llama3", "gemma",
}  # fmt: skip


def model_card(name: str, pipeline: Any, reports: Mapping[str, Any]) -> str:
    """Return the model card of an export, in Markdown.

    Args:
        name: the export's name.
        pipeline: the exported pipeline.
        reports: the content of `parity.json`.
    """
    return "\n".join(
        [
            *_front_matter(name, pipeline, reports),
            *_head(name, pipeline),
            *_examples(reports),
            *(line for target in targets_of(reports) for line in target.card(name, pipeline, reports)),
            *_limits(pipeline, reports),
            f"## Licence and origin\n\n{license_of(pipeline.source)}\n",
            *_settings(pipeline),
            *_parity(reports),
        ]
    )


def _front_matter(name: str, pipeline: Any, reports: Mapping[str, Any]) -> Iterator[str]:
    """Yield the YAML that the Hugging Face Hub reads: language, licence, base model, task and library."""
    source, codes = pipeline.source, _languages(name, pipeline)
    yield "---\nlibrary_name: keras_transformer"
    if task := pipeline.hub_task or ("translation" if codes else None):
        yield f"pipeline_tag: {task}"
    if codes:
        yield f"language: [{', '.join(json.dumps(code) for code in dict.fromkeys(map(_first, codes)))}]"
    if source is not None and source.license is not None:
        known = source.license in _LICENSES
        yield f"license: {source.license if known else 'other'}"
        if not known:
            yield f"license_name: {json.dumps(source.license)}"
    if source is not None and source.commit is not None:
        yield f"base_model: {json.dumps(source.name)}"
    tags = [tag for target in targets_of(reports) for tag in target.tags]
    yield f"tags: [{', '.join(['keras', *tags])}]\n---\n"


def _head(name: str, pipeline: Any) -> Iterator[str]:
    yield f"# {name}\n"
    model, kind = pipeline.model, pipeline.export_config()["pipeline"]
    models = getattr(model, "models", [model])  # of an ensemble
    count, dtype = sum(part.count_params() for part in models), models[0].compute_dtype
    summary = f"{pipeline.summary} " if pipeline.summary else ""
    description = f"a `{type(model).__name__}` with {count:,} parameters that computes in {dtype}"
    yield f"{summary}This is the export of a `{kind}` pipeline of keras_transformer: {description}.\n"
    if codes := _languages(name, pipeline):
        listed = ", ".join(map(_language, codes[:_MOST_LANGUAGES]))
        more = f" and {len(codes) - _MOST_LANGUAGES} others" if len(codes) > _MOST_LANGUAGES else ""
        if pipeline.languages:
            yield f"It knows {len(codes)} languages: {listed}{more}. `config.json` has all codes.\n"
        else:
            yield f"By its name, it translates from {_language(codes[0])} to {_language(codes[1])}.\n"


def _languages(name: str, pipeline: Any) -> list[str]:
    """Return the codes of the languages of a translator, if they are known from its tokenizer or its name."""
    if codes := getattr(pipeline, "languages", None):
        return sorted(codes, key=_language)
    names = [name, *([] if pipeline.source is None else [pipeline.source.name])]
    pairs = [languages.pair_of(each) for each in names] if hasattr(pipeline, "languages") else []
    known = [pair for pair in pairs if pair and all(languages.name_of(code) != code for code in pair)]
    return list(known[0]) if known else []


def _first(code: str) -> str:
    """Return the language of a code such as "eng_Latn"."""
    return code.split("_")[0]


def _language(code: str) -> str:
    """Return the English name of a language, if it is known, and its code."""
    name = languages.name_of(_first(code))
    return f"`{code}`" if name == _first(code) else f"{name} (`{code}`)"


def _examples(reports: Mapping[str, Any]) -> Iterator[str]:
    """Yield a table of a few texts and the outputs of the model."""
    rows = [
        (text, answer)
        for text, answer in card.outputs(reports).items()
        if any(map(str.isalpha, text)) and len(f"{text}{answer}") <= MOST_CHARACTERS
    ]
    if rows:
        yield "## Examples\n\n| input | output |\n|---|---|"
        for text, answer in rows[:_MOST_EXAMPLES]:
            yield f"| {card.cell(text)} | {card.cell(answer)} |"
        yield "\nThese outputs were compared with the model at export. They are no measure of quality.\n"


def _limits(pipeline: Any, reports: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the model cannot do, and what was not measured."""
    config = pipeline.export_config()
    yield "## Limits\n"
    if (most := config.get("max_source_tokens", config.get("max_length"))) is not None:
        rule = _LONG_TEXTS.get(config.get("long_texts"), "")
        yield f"- It reads texts of at most {most:,} tokens. {rule}".rstrip()
    if (most := config.get("max_seconds")) is not None:
        yield f"- It reads audio of at most {most:g} seconds."
    if (most := config.get("max_new_tokens")) is not None:
        yield f"- It writes at most {most:,} tokens."
    if any("precisions" in report for report in reports.values()):
        yield "- Some outputs in other precisions than float32 differ from those in float32: see the comparison below."
    quality = pipeline.quality or "The quality of its outputs was not measured for this card."
    yield f"- {quality} Measure it on examples of your own."
    yield "- It can repeat errors and prejudices of the texts that it was trained on.\n"


def license_of(source: Source | None) -> str:
    """Return where the weights of a pipeline come from, and their licence."""
    if source is None:
        return "No licence is recorded. Before you share the model, name one that its training data allows."
    return _provenance(source)


def _settings(pipeline: Any) -> Iterator[str]:
    yield "## Settings\n\nThe settings of the pipeline, as in `config.json`:\n"
    yield "| setting | value |\n|---|---|"
    for key, value in pipeline.export_config().items():
        if key not in _NOT_SETTINGS:
            shown = json.dumps(value, ensure_ascii=False).replace("|", "\\|")
            yield f"| {key} | {shown if len(shown) <= MOST_CHARACTERS else 'see config.json'} |"
    yield ""


def _provenance(source: Source) -> str:
    """Return where the weights come from, and their licence."""
    verb = "Fine-tuned" if source.fine_tuned else "Converted"
    if source.commit is None:
        sentences = [f"{verb} from the folder {_code(source.name)}."]
    else:
        revision = "" if source.revision in (None, source.commit) else f" (revision {_code(source.revision)})"
        address = f"https://huggingface.co/{source.name}/tree/{source.commit}"
        sentences = [
            f"{verb} from [{_code(source.name)}]({address}) at the commit {_code(source.commit)}{revision}."
        ]
    if source.conversion is not None:
        sentences.append(
            f"The weights are those of the hub's conversion to safetensors, a pull request with the commit "
            f"{_code(source.conversion)}."
        )
    if source.base_models:
        sentences.append(f"It is derived from {', '.join(map(_code, source.base_models))}.")
    if source.license is None:
        sentences.append("Its model card names no licence. Ask its authors before you use or share it.")
    else:
        sentences.append(f"Its licence is {_code(source.license)}.")
    return " ".join(sentences)


def _code(text: str) -> str:
    """Return a string from outside as code in Markdown."""
    return f"`{text.replace('`', '')[:MOST_CHARACTERS]}`"


def _parity(reports: Mapping[str, Any]) -> Iterator[str]:
    yield "## Comparison with the model\n"
    yield "The outputs were compared with the pipeline's at export. `keras-transformer verify .` compares again."
    yield "“identical” counts the texts with the model's ids. “near ties” counts the texts whose ids differ where two"
    yield "tokens are almost equally probable.\n"
    yield "| part | graph | result |\n|---|---|---|"
    for part, report in reports.items():
        for graph, figures in report.get("graphs", {}).items():
            shown = ", ".join(f"{key.replace('_', ' ')} {_number(value)}" for key, value in figures.items())
            limit = f" (tolerance {_number(report['tolerance'])})" if "tolerance" in report else ""
            yield f"| {part} | {graph} | {shown}{limit} |"
        for precision, figures in report.get("precisions", {}).items():
            limits = figures["thresholds"]
            shown = ", ".join(
                f"{key.replace('_', ' ')} {_number(value)}"
                + (f" (threshold {_number(limits[key])})" if key in limits else "")
                for key, value in figures.items()
                if key != "thresholds"
            )
            yield f"| {part} | {precision} | {shown} |"
        for precision, reason in report.get("left_out", {}).items():
            yield f"| {part} | {precision} | left out: {card.cell(reason)} |"
        if "vocabulary_shortlist" in report:
            figures = report["vocabulary_shortlist"]
            same = f"{figures['identical']} of {figures['outputs']} outputs"
            yield f"| {part} | vocabulary shortlist | {same} are the same with the whole vocabulary |"
    yield ""


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"
