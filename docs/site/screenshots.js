/**
 * Write the pictures of the guides to docs/images, each in light and dark: node docs/site/screenshots.js FOLDER [NAME …]
 *
 * FOLDER is where the commands of the guides were run: it has their runs/ and export/. NAME is the picture of PICTURES to write, by
 * default all. keras-transformer-serve, and a python that has Pillow, must be in PATH.
 */

import { spawn, spawnSync } from "node:child_process";
import { writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath, pathToFileURL } from "node:url";

import { demoServer } from "../../export/javascript/demo/serve.js";
import { Chromium, findChromium } from "../../export/javascript/test/browser/chromium.js";

const IMAGES = fileURLToPath(new URL("../images/", import.meta.url));
const SCALE = 2;
const MARGIN = 16;
// Surfaces have few colors: a palette makes a picture a third of its size.
const SHRINK = `
import io, sys
from PIL import Image
picture = Image.open(io.BytesIO(sys.stdin.buffer.read())).convert("RGB")
picture.quantize(128, dither=Image.Dither.NONE).save(sys.stdout.buffer, "png", optimize=True)
`;

/** Each picture: the page that is opened, its width, what is done there, and the elements that are shown. */
const PICTURES = {
  translator_report: {
    opened: (folder) => report(folder, "translator"),
    width: 800,
    elements: "h2:has(+ .cards), .cards, .curves svg:nth-child(-n + 2)",
  },
  translator_server: {
    opened: (folder) => served(folder, "translator"),
    width: 720,
    done: (page) => ask(page, "attributions", [{ text: "¿Dónde está la estación?" }]),
    elements: "main > :not(p)",
  },
  server_error: {
    opened: (folder) => served(folder, "translator"),
    width: 720,
    done: (page) => ask(page, "serving_default", [{ text: "¿Dónde está <b>la estación?", tag_handling: "html" }]),
    elements: "main > :not(p)",
  },
  classifier_server: {
    opened: (folder) => served(folder, "sentences"),
    width: 720,
    done: (page) => ask(page, "serving_default", [{ text: "Where is the station" }, { text: "The dog is in the garden" }]),
    elements: "main > :not(p)",
  },
  language_model_server: {
    opened: (folder) => served(folder, "writer"),
    width: 720,
    done: (page) => ask(page, "generate", [{ text: "My grandmother", temperature: 0.8, seed: 1 }]),
    elements: "main > :not(p)",
  },
  browser_demo: {
    opened: (folder) => demo(folder, "translator"),
    width: 720,
    done: translateInBrowser,
    elements: "h1, form, #answer",
  },
};

/** Return the address of the report of a run, and a function that closes what was started for it. */
function report(folder, name) {
  return { url: pathToFileURL(join(folder, "runs", name, "report.html")).href, close() {} };
}

/** Serve an export. */
async function served(folder, name) {
  const options = { stdio: ["ignore", "pipe", "inherit"] };
  const server = spawn("keras-transformer-serve", [join(folder, "export", name), "--port", "0"], options);
  for await (const line of createInterface({ input: server.stdout })) {
    if (line.startsWith("http://")) return { url: line.trim(), close: () => server.kill() };
  }
  throw new Error(`${name} was not served`);
}

/** Serve the page that runs an export in the browser. */
async function demo(folder, name) {
  const server = demoServer({ "/export/": join(folder, "export", name) });
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  return { url: `http://127.0.0.1:${server.address().port}/`, close: () => server.close() };
}

/** Call a function in the page with arguments of JSON. */
function inPage(page, run, ...args) {
  return page.evaluate(`(${run})(...${JSON.stringify(args)})`);
}

/** Send rows, the values of their fields by name, to a signature, and wait for the answers. */
async function ask(page, signature, rows) {
  await page.until("document.querySelector('#rows textarea')");
  await inPage(
    page,
    (signature, rows) => {
      const select = document.querySelector("#signature");
      select.value = signature;
      select.dispatchEvent(new Event("change"));
      rows.slice(1).forEach(() => document.querySelector("#add").click());
      rows.forEach((fields, row) =>
        Object.entries(fields).forEach(([name, value]) => (document.querySelector(`#row-${row}-${name}`).value = value)),
      );
      document.querySelector("#send").click();
    },
    signature,
    rows,
  );
  await page.until(`!document.querySelector("#send").disabled && document.querySelectorAll(".answer").length === ${rows.length}`);
}

/** Load the export in the page, and translate a text. */
async function translateInBrowser(page) {
  await page.evaluate("document.querySelector('#load').click()");
  await page.until("!document.querySelector('#form').hidden");
  await inPage(page, () => {
    document.querySelector("textarea.text").value = "¿Dónde está la estación?";
    document.querySelector("#send").click();
  });
  await page.until("document.querySelector('#time').textContent");
}

/** Return the rectangle of elements of the page, with a margin. */
function rectangle(page, elements) {
  return inPage(
    page,
    (elements, margin) => {
      const boxes = [...document.querySelectorAll(elements)].map((each) => each.getBoundingClientRect()).filter((box) => box.height);
      const [x, y] = ["left", "top"].map((side) => Math.min(...boxes.map((box) => box[side])) - margin);
      const [right, bottom] = ["right", "bottom"].map((side) => Math.max(...boxes.map((box) => box[side])) + margin);
      return { x: x + scrollX, y: y + scrollY, width: right - x, height: bottom - y };
    },
    elements,
    MARGIN,
  );
}

/** Write a picture in light and dark. */
async function write(name, folder, page) {
  const { opened, width, done, elements } = PICTURES[name];
  const { url, close } = await opened(folder);
  try {
    await page.emulate(width, "light", SCALE);
    await page.open(url);
    await done?.(page);
    for (const scheme of ["light", "dark"]) {
      await page.emulate(width, scheme, SCALE);
      const input = await page.screenshot(await rectangle(page, elements));
      const { stdout, status } = spawnSync("python", ["-c", SHRINK], { input, stdio: ["pipe", "pipe", "inherit"] });
      if (status !== 0) throw new Error("python could not shrink the picture");
      writeFileSync(join(IMAGES, `${name}_${scheme}.png`), stdout);
      console.log(`docs/images/${name}_${scheme}.png, ${Math.round(stdout.length / 1000)} kB`);
    }
  } finally {
    close();
  }
}

const [folder = ".", ...names] = process.argv.slice(2);
const page = await Chromium.start(findChromium());
try {
  await page.send("Emulation.setScrollbarsHidden", { hidden: true });
  for (const name of names.length ? names : Object.keys(PICTURES)) await write(name, resolve(folder), page);
} finally {
  await page.close();
}
