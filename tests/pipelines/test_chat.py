"""Conversations: messages in, the model's next message out."""

import json

import numpy as np
import pytest

import keras_transformer_serving as serving
from keras_transformer import export, generation, interop, pipelines, text
from keras_transformer.models import GPT
from keras_transformer.pipelines import TextGeneration
from keras_transformer.pipelines.hugging_face_chat import read_chat_template
from keras_transformer_cli import commands
from tests.random_weights import randomise

pytest.importorskip("jinja2")

TEXTS = ["to be, or not to be: that is the question", "whether 'tis nobler in the mind to suffer"]
TOKENS = {"start": "<s>", "end": "</s>", "turn": "<|turn|>", "over": "<|over|>"}
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role not in ['user', 'assistant'] %}{{ raise_exception('Unknown role ' + m.role) }}{% endif %}"
    "{{ '<|turn|>' + m.role + ' ' + m.content }}{% if not loop.last or m.role == 'user' %}<|over|>{% endif %}"
    "{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if add_generation_prompt %}<|turn|>assistant {% endif %}"
)
USER = [{"role": "user", "content": "to be"}]
PREFILLED = [*USER, {"role": "assistant", "content": "that is"}]
WIZARD = [{"role": "wizard", "content": "to be"}]


@pytest.fixture(scope="module")
def tokenizer():
    return text.BytePairTokenizer.train(TEXTS, 290, special_tokens=TOKENS)


@pytest.fixture(scope="module")
def chat(tokenizer):
    sizes = {"num_layers": 1, "num_heads": 2, "model_dim": 8, "max_length": 96, "dropout": 0.0}
    model = GPT(tokenizer.vocabulary_size, **sizes, pad_id=None, end_id=tokenizer.end_id)
    randomise(model, scale=0.7, seed=1)
    return TextGeneration(
        model, tokenizer, max_new_tokens=6, max_source_tokens=80, add_start=True, chat_template=TEMPLATE
    )


@pytest.fixture(scope="module")
def exported(chat, tmp_path_factory):
    pytest.importorskip("tf2onnx")
    return export.onnx(chat, tmp_path_factory.mktemp("export") / "chat").parent


def prompt_ids(chat, prompt):
    return chat.tokenizer.tokenize(prompt, special_tokens=True).numpy().tolist()


def test_prompts_have_the_template_and_the_tokens_of_the_tokenizer(chat):
    assert chat.apply_chat_template(USER) == "<s><|turn|>user to be<|over|><|turn|>assistant "
    assert chat.apply_chat_template(USER, add_generation_prompt=False) == "<s><|turn|>user to be<|over|>"
    assert chat.apply_chat_template(USER, [{"name": "f"}]).endswith('[{"name": "f"}]<|turn|>assistant ')


def test_one_conversation_has_one_answer_and_a_list_a_list(chat):
    answer = chat(USER)
    assert isinstance(answer, str)
    assert chat([USER, PREFILLED, USER]) == [answer, chat(PREFILLED), answer]
    assert chat({"messages": USER}) == answer
    assert chat([{"messages": USER}]) == [answer]
    assert "".join(chat.stream(USER)) == answer
    assert [one.text for one in chat.answers([USER])[0]] == [answer]
    assert chat([]) == []


def test_an_answer_continues_the_ids_of_the_prompt_with_one_start_token(chat):
    ids = prompt_ids(chat, chat.apply_chat_template(USER))
    specials = (chat.tokenizer.special_token_ids[token] for token in ("<s>", "<|turn|>", "<|over|>"))
    assert [ids.count(id_) for id_ in specials] == [1, 2, 1]
    expected = generation.generate(chat.model, np.array([ids]), max_new_tokens=6).ids
    np.testing.assert_array_equal(chat.generate([USER]).ids, expected)


def test_the_model_continues_its_own_last_message(chat):
    prompt = "<s><|turn|>user to be<|over|><|turn|>assistant that is"
    assert chat.apply_chat_template(PREFILLED, continue_final_message=True) == prompt
    ids = np.array([prompt_ids(chat, prompt)])
    np.testing.assert_array_equal(
        chat.generate([PREFILLED]).ids, generation.generate(chat.model, ids, max_new_tokens=6).ids
    )


def test_answers_end_before_any_end_token(chat):
    first = int(chat.generate([USER]).ids[0, 0, 2])
    ending = chat.with_settings(constraints=[generation.EndTokens([first])])
    answer = ending(USER)
    assert chat(USER).startswith(answer)
    assert answer == ending.decode(ending.generate([USER]).ids[:, 0, :2]).numpy()[0].decode()
    assert "".join(ending.stream(USER)) == answer


def test_errors_of_conversations_are_raised_or_returned(chat):
    with pytest.raises(
        ValueError, match="chat template can render: Unknown role wizard. Received: messages="
    ):
        chat(WIZARD)
    answer, error = chat([USER, WIZARD], errors="return")
    assert answer == chat(USER)
    assert "Unknown role wizard" in str(error)
    for wrong, message in (
        ([[], USER], r"must be strings. Received: texts\[0\]=\[\]"),
        ({"tools": []}, 'must have "messages"'),
        ([{"role": "user"}], 'a "content"'),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            chat(wrong)
    plain = TextGeneration(chat.model, chat.tokenizer, max_new_tokens=6)
    with pytest.raises(ValueError, match="must be for a pipeline with a chat template. Received: "):
        plain(USER)
    with pytest.raises(TypeError, match="`chat_template` must be a string or a ChatTemplate"):
        TextGeneration(chat.model, chat.tokenizer, max_new_tokens=6, chat_template=3)


def test_the_template_is_saved_with_the_pipeline(chat, tmp_path):
    chat.save(tmp_path / "chat")
    loaded = pipelines.load(tmp_path / "chat")
    assert loaded.chat_template == chat.chat_template
    assert loaded(USER) == chat(USER)
    assert chat.with_settings("greedy").chat_template == chat.chat_template


@pytest.mark.slow
def test_the_command_line_takes_messages(chat, tmp_path, capsys):
    chat.save(tmp_path / "chat")
    generate = ["generate", "--chat", str(tmp_path / "chat")]
    assert commands.main([*generate, "to be", json.dumps(PREFILLED), json.dumps({"messages": USER})]) == 0
    expected = [" ".join(answer.splitlines()) for answer in chat([USER, PREFILLED, USER])]
    assert capsys.readouterr().out.split("\n") == [*expected, ""]
    assert commands.main([*generate, "[to be"]) == 2
    assert "must be the message of a user, or JSON such as" in capsys.readouterr().err
    assert commands.main([*generate, json.dumps(WIZARD)]) == 2
    assert "Unknown role wizard" in capsys.readouterr().err


def test_conversations_on_the_command_line_need_a_template(pipeline, tmp_path, capsys):
    pipeline.save(tmp_path / "translator")
    assert commands.main(["generate", str(tmp_path / "translator"), "uno", "--chat"]) == 2
    assert "`--chat` must be for a pipeline with a chat template" in capsys.readouterr().err


@pytest.mark.slow
def test_an_export_without_tensorflow_gives_equal_ids(chat, exported, capsys):
    assert (exported / "chat_template.jinja").read_text() == TEMPLATE
    served = serving.load(exported)
    assert served.apply_chat_template(USER) == chat.apply_chat_template(USER)
    for conversations in ([USER], [USER, PREFILLED], [{"messages": USER, "tools": [{"name": "f"}]}]):
        found, expected = served.generate(conversations), chat.generate(conversations)
        np.testing.assert_array_equal(found["ids"], expected.ids[:, 0])
        assert served(conversations) == chat(conversations)
    assert served(USER) == chat(USER)
    assert commands.main(["generate", str(exported), "to be", "--chat"]) == 0
    assert capsys.readouterr().out == " ".join(chat(USER).splitlines()) + "\n"
    assert served("to be") == chat("to be")
    answer, error = served([USER, WIZARD], errors="return")
    assert answer == chat(USER)
    assert "Unknown role wizard" in str(error)


@pytest.fixture
def folder(chat, tmp_path):
    folder = interop.to_hugging_face(chat.model, tmp_path / "gpt2")
    tokenizer = chat.tokenizer
    (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(tokenizer.vocabulary)}))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *map(" ".join, tokenizer.merges)]))
    return folder


def write_config(folder, **settings):
    tokens = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "unk_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**tokens, **settings}))


NAMED = [{"name": "default", "template": "{{ eos_token }} d"}, {"name": "tool_use", "template": "t"}]


@pytest.mark.slow
def test_templates_are_read_from_the_files_of_a_folder(folder):
    write_config(folder)
    found = pipelines.from_hugging_face(folder, max_new_tokens=4, max_source_tokens=80)
    assert found.chat_template is None
    write_config(folder, chat_template=TEMPLATE)
    found = pipelines.from_hugging_face(folder, max_new_tokens=4, max_source_tokens=80)
    assert found.apply_chat_template(USER).startswith("<s><|turn|>user to be")
    assert isinstance(found(USER), str)
    write_config(folder, chat_template=NAMED)
    found = pipelines.from_hugging_face(folder, max_new_tokens=4, max_source_tokens=80)
    assert found.apply_chat_template(USER) == "</s> d"
    assert found.apply_chat_template(USER, [{"name": "f"}]) == "t"
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "of the processor"}))
    found = pipelines.from_hugging_face(folder, max_new_tokens=4, max_source_tokens=80)
    assert found.apply_chat_template(USER) == "of the processor"
    (folder / "chat_template.jinja").write_text("of its file")
    found = pipelines.from_hugging_face(folder, max_new_tokens=4, max_source_tokens=80)
    assert found.apply_chat_template(USER) == "of its file"
    found = pipelines.from_hugging_face(
        folder, max_new_tokens=4, max_source_tokens=80, chat_template="{# #}of the argument"
    )
    assert found.apply_chat_template(USER) == "of the argument"


def test_a_template_of_a_folder_is_selected_by_its_name(folder):
    write_config(folder, chat_template=[*NAMED, {"name": "rag", "template": "documents"}])
    settings = TextGeneration.hugging_face_settings(folder, {"chat_template": "rag", "max_new_tokens": 4})
    assert settings["chat_template"].render(USER, tools=[]) == "documents"
    assert settings["max_new_tokens"] == 4
    assert read_chat_template(folder).render(USER, chat_template="rag") == "documents"
    with pytest.raises(ValueError, match=r"named 'rga'. Received: \['default', 'rag', 'tool_use'\]"):
        TextGeneration.hugging_face_settings(folder, {"chat_template": "rga"})
    (folder / "chat_template.jinja").write_text("of its file")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rag.jinja").write_text("of documents")
    assert read_chat_template(folder).render(USER, chat_template="rag") == "of documents"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (NAMED[1:], "a chat template named 'default'"),
        ([3], "a template, or a list of named ones"),
        (3, "a template"),
    ],
)
def test_invalid_templates_of_a_folder_raise_errors(folder, template, message):
    write_config(folder, chat_template=template)
    with pytest.raises(ValueError, match=f"must have {message}.*Received: "):
        pipelines.from_hugging_face(folder, max_new_tokens=4, max_source_tokens=80)
