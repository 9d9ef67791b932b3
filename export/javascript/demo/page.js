import { loadInWorker } from "./dist/browser.js";

const RUNTIME = new URL("runtime/ort.wasm.bundle.min.mjs", import.meta.url).href;
// The texts that each pipeline takes, the name of each, and of how many lines its field is.
const FIELDS = {
  QuestionAnswering: [["question", 1], ["context", 6]],
  Reranking: [["query", 1], ["texts, one a line", 6]],
};
const get = (id) => document.getElementById(id);
let model;

function element(tag, text, properties = {}) {
  const made = Object.assign(document.createElement(tag), properties);
  made.textContent = text;
  return made;
}

function megabytes(bytes) {
  return (bytes / 1e6).toFixed(1);
}

function showStatus(text, isError = false) {
  get("status").textContent = text;
  get("status").className = isError ? "error" : "";
}

function showFields() {
  const { pipeline, languages = [], ...config } = model.config;
  const inputs = (FIELDS[pipeline] ?? [["text", 3]]).flatMap(([name, rows]) => {
    const id = `field-${name.split(",")[0]}`;
    return [element("label", name, { htmlFor: id }), element("textarea", "", { id, rows, className: "text" })];
  });
  if (config.mask) inputs.push(element("small", `The mask token is ${config.mask}`));
  const options = languages.length > 0 ? ["source_language", "target_language"] : [];
  const selects = options.flatMap((name) => {
    const select = element("select", "", { id: name });
    select.append(...languages.map((each) => element("option", each, { selected: each === config[name] })));
    return [element("label", name.replace("_", " "), { htmlFor: name }), select];
  });
  get("fields").replaceChildren(...inputs, ...selects);
}

function bars(probabilities, labels) {
  const box = element("div", "", { className: "bars" });
  const rows = [...probabilities].map((value, index) => [value, String(labels[index])]);
  for (const [value, label] of rows.sort(([one], [other]) => other - one).slice(0, 10)) {
    box.append(element("span", label), element("meter", "", { value, max: 1, ariaLabel: label }), element("span", value.toFixed(3)));
  }
  return box;
}

function chosenLanguages() {
  if (!get("source_language")) return {};
  return { sourceLanguage: get("source_language").value, targetLanguage: get("target_language").value };
}

/** What an answer is shown as, by pipeline. */
const ANSWERS = {
  async TextClassification(answer, [text]) {
    if (model.config.problem_type === "regression") return [String(await model.call(text))];
    return [bars(await model.callMethod("probabilities", text), model.config.labels)];
  },
  async TokenClassification(answer, [text]) {
    const words = await model.call(text);
    return words.flatMap(({ word, label }) => [word, element("small", ` ${label} `)]);
  },
  async QuestionAnswering(answer, [question, context]) {
    const { start, end, probability } = await model.call(question, context);
    const parts = [context.slice(0, start), element("mark", context.slice(start, end)), context.slice(end)];
    return [...parts, element("div", `probability ${probability.toFixed(3)}`)];
  },
  async FillMask(answer, [text]) {
    const masks = await model.call(text);
    return masks.map((best) => bars(best.map(({ probability }) => probability), best.map(({ piece }) => piece)));
  },
  async Reranking(answer, [query, lines]) {
    const texts = lines.split("\n").filter((line) => line.trim() !== "");
    const ranked = await model.callMethod("rank", query, texts);
    return [ranked.map(({ textIndex, score }) => `${score.toPrecision(4)}  ${texts[textIndex]}`).join("\n")];
  },
  async Embedding(answer, [text]) {
    const vector = await model.call(text);
    return [`${vector.length} numbers: ${[...vector].map((value) => value.toFixed(4)).join(" ")}`];
  },
};

async function generate(answer, [text]) {
  if (model.cannotStream) return [await model.call(text, chosenLanguages())];
  const shown = document.createTextNode("");
  answer.replaceChildren(shown);
  for await (const piece of model.stream(text, chosenLanguages())) shown.data += piece;
  return [shown];
}

get("loading").addEventListener("submit", async (event) => {
  event.preventDefault();
  const [bar, button] = [get("progress"), get("load")];
  model?.terminate();
  for (const id of ["form", "answers"]) get(id).hidden = true;
  button.disabled = true;
  bar.hidden = false;
  bar.value = 0;
  showStatus("Loading …");
  const onProgress = ({ loaded, total }) => {
    bar.value = total ? loaded / total : 0;
    showStatus(`Loading … ${megabytes(loaded)} of ${megabytes(total)} MB`);
  };
  const options = { precision: get("precision").value, graphs: "steps", runtimeUrl: RUNTIME, onProgress };
  try {
    model = await loadInWorker(get("url").value, options);
    showFields();
    showStatus(`${model.config.pipeline}, ready`);
    get("form").hidden = false;
  } catch (error) {
    showStatus(error.message, true);
  } finally {
    bar.hidden = true;
    button.disabled = false;
  }
});

get("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const [answer, button] = [get("answer"), get("send")];
  const texts = [...document.querySelectorAll("textarea.text")].map((field) => field.value);
  button.disabled = true;
  get("answers").hidden = false;
  answer.className = "";
  answer.replaceChildren("…");
  get("time").textContent = "";
  const begin = performance.now();
  try {
    answer.replaceChildren(...(await (ANSWERS[model.config.pipeline] ?? generate)(answer, texts)));
    get("time").textContent = `${Math.round(performance.now() - begin)} ms on this machine`;
  } catch (error) {
    answer.className = "error";
    answer.textContent = error.message;
  } finally {
    button.disabled = false;
  }
});
