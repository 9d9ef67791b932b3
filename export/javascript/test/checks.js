/** Checks of the runtime against what Python wrote, in Node and in a page of a browser. */

/** Return what differs between a tokenizer and Python's on difficult lines. */
export function differencesOfTokenizer(tokenizerOf, model, { class: name, file, ...expected }) {
  const tokenizer = tokenizerOf(name, model);
  const { texts, textsOfWords, rows } = expected;
  const found = {
    ids: texts.map((text) => tokenizer.tokenize(text)),
    words: textsOfWords.map((text) => tokenizer.tokenizeWords(text).map(({ ids, start, end }) => [ids, start, end])),
    idsWithSpecialTokens: texts.map((text) => tokenizer.tokenize(text, true)),
    decoded: rows.map((row) => tokenizer.detokenize(row)),
    pieces: [...tokenizer.pieces],
  };
  return differences(found, { ...expected, texts: undefined, textsOfWords: undefined, rows: undefined });
}

/** Return what differs between an export's results and Python's; `loadAs` loads it in a precision. */
export async function differencesOfExport(loadAs, calls) {
  const found = [];
  for (const precision of new Set(calls.map((each) => each.precision))) {
    const model = await loadAs(precision);
    const ofPrecision = calls.filter((each) => each.precision === precision);
    for (const { method, arguments: args, options, result } of ofPrecision) {
      const received = await call(model, method, args, options).catch((error) => error);
      const place = `${precision} ${method}(${JSON.stringify(args).slice(0, 60)}, ${JSON.stringify(options)})`;
      found.push(...differences(received, result, place));
    }
    await model.release();
  }
  return found;
}

/** Return what differs between an export's ids and those that `parity.json` has, and its streams and its calls. */
export async function differencesOfParity(model, { examples }) {
  const found = [];
  const { source_language: sourceLanguage, target_language: targetLanguage } = examples.languages ?? {};
  const languages = sourceLanguage ? { sourceLanguage, targetLanguage } : {};
  const ofRow = (row) => (sourceLanguage ? { sourceLanguage: sourceLanguage[row], targetLanguage: targetLanguage[row] } : {});
  const hypotheses = await model.generate(examples.texts, languages);
  const several = Array.isArray(examples.ids[0][0]);
  const ids = hypotheses.map((each) => (several ? each.ids : each.ids[0]));
  found.push(...differences(ids, examples.ids, "parity ids"));
  if (!several) found.push(...differences(await model(examples.texts, languages), examples.answers, "parity answers"));
  if (model.cannotStream) return found;
  let most = 0;
  for (const [row, text] of examples.texts.entries()) {
    const pieces = [];
    for await (const piece of model.stream(text, ofRow(row))) pieces.push(piece);
    found.push(...differences(pieces.join(""), examples.answers[row], `stream(${JSON.stringify(text)})`));
    most = Math.max(most, pieces.length);
  }
  return most > 1 ? found : [...found, `each stream has at most ${most} piece`];
}

async function call(model, method, args, options) {
  const [positional, named] = [[...args], {}];
  // The second text of a classifier of pairs is an option in JavaScript.
  if (model.config.pipeline === "TextClassification" && positional.length === 2) {
    named.textPair = positional.pop();
  }
  for (const [name, value] of Object.entries(options)) named[camelCase(name)] = value;
  return method === "__call__" ? model(...positional, named) : model[method](...positional, named);
}

function camelCase(name) {
  return name.replace(/_(.)/g, (_, letter) => letter.toUpperCase());
}

/** Return the places at which a value differs from what is expected, floats by more than their rounding. */
export function differences(value, expected, place = "") {
  if (expected === undefined) return [];
  const different = [`${place}: expected ${shortened(expected)}, received ${shortened(value)}`];
  if (expected !== null && typeof expected === "object" && "error" in expected) {
    // Messages name arguments as JavaScript does; what was received is the same.
    const received = /Received: (.*)$/s.exec(value?.message ?? "")?.[1];
    return received?.includes(essence(expected.error)) ? [] : different;
  }
  if (typeof expected === "number") {
    return Math.abs(value - expected) <= 1e-4 * (1 + Math.abs(expected)) ? [] : different;
  }
  if (expected === null || typeof expected !== "object") return value === expected ? [] : different;
  if (value === null || typeof value !== "object" || value instanceof Error) return different;
  if (Array.isArray(expected)) {
    if (value.length !== expected.length) return different;
    return expected.flatMap((item, index) => differences(value[index], item, `${place}[${index}]`));
  }
  return Object.entries(expected).flatMap(([name, item]) =>
    differences(value[camelCase(name)], item, `${place}.${name}`),
  );
}

/** Return the number or value that was received, in the error of Python. */
function essence(message) {
  return /Received: (?:\w+=)?'?(\w*)/s.exec(message)?.[1] ?? message;
}

function shortened(value) {
  return (value instanceof Error ? `${value.stack}` : JSON.stringify(value) ?? `${value}`).slice(0, 200);
}
