/**
 * The built site in headless Chromium: axe-core finds no violation on any page, in light and dark; no page is wider than a
 * phone, and the first columns of its tables stay readable there; headings are in order; images have alternative texts; and nothing is requested from another host.
 */

import assert from "node:assert/strict";
import { createReadStream, existsSync, readdirSync, readFileSync } from "node:fs";
import { createServer } from "node:http";
import { extname, join, relative } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";

import { Chromium, findChromium } from "../../export/javascript/test/browser/chromium.js";

const SITE = fileURLToPath(new URL("../../site/", import.meta.url));
const AXE = readFileSync(fileURLToPath(new URL("node_modules/axe-core/axe.min.js", import.meta.url)), "utf8");
const PHONE = 360;
const TYPES = { ".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml" };

assert.ok(existsSync(SITE), "make docs must have built site/");
const pages = readdirSync(SITE, { recursive: true, withFileTypes: true })
  .filter((entry) => entry.isFile() && entry.name.endsWith(".html"))
  .map((entry) => relative(SITE, join(entry.parentPath ?? entry.path, entry.name)))
  .filter((page) => page.includes(process.env.PAGE ?? ""))
  .sort();

const server = createServer((request, response) => {
  const path = join(SITE, decodeURIComponent(new URL(request.url, "http://localhost").pathname));
  if (!path.startsWith(SITE) || !existsSync(path)) return response.writeHead(404).end();
  response.setHeader("Content-Type", TYPES[extname(path)] ?? "application/octet-stream");
  createReadStream(path).pipe(response);
});
let browser;
let url;

before(async () => {
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  url = `http://127.0.0.1:${server.address().port}/`;
  browser = await Chromium.start(findChromium());
});

after(async () => {
  await browser?.close();
  server.close();
});

/** Open a page at a width, in a color scheme. */
async function open(page, scheme, width) {
  await browser.emulate(width, scheme);
  await browser.open(url + page);
}

/** Return the violations that axe-core finds in the page: the rule, the number of elements, and the first of them. */
async function violations() {
  // Closed sources of the reference all have one form; thousands of their tokens take most of the time.
  await browser.evaluate(`[...document.querySelectorAll("details.mkdocstrings-source")].slice(1).forEach((source) => source.remove())`);
  await browser.evaluate(`${AXE}; undefined`);
  const found = await browser.evaluate(`axe.run(document, { resultTypes: ["violations"] }).then(({ violations }) =>
    violations.map(({ id, nodes }) => ({ id, count: nodes.length, first: nodes.slice(0, 3).map(({ target, failureSummary }) =>
      target.join(" ") + ": " + failureSummary.split("\\n").slice(1).join(" ").trim()) })))`);
  return found.map(({ id, count, first }) => [`${id}, ${count} elements`, ...first].join("\n    "));
}

/** Return what is wrong in the order of the headings of the text. */
function headingErrors() {
  return browser.evaluate(`(() => {
    const levels = [...document.querySelectorAll("article :is(h1, h2, h3, h4, h5, h6)")].map((each) => [Number(each.tagName[1]), each.textContent]);
    const errors = levels.filter(([level], index) => index && level > levels[index - 1][0] + 1).map(([level, text]) => level + " " + text);
    return levels.filter(([level]) => level === 1).length === 1 ? errors : [...errors, "one heading of level 1"];
  })()`);
}

/** Return the addresses that the page requested from other hosts, and its images without an alternative text. */
function foreignOrMute() {
  return browser.evaluate(`[
    ...performance.getEntriesByType("resource").map(({ name }) => name).filter((name) => !name.startsWith(location.origin) && !name.startsWith("data:")),
    ...[...document.images].filter((image) => !image.alt.trim()).map((image) => image.outerHTML.slice(0, 200)),
  ]`);
}

/** Return the elements that are wider than the page. */
function tooWide() {
  return browser.evaluate(`document.documentElement.scrollWidth <= ${PHONE} ? [] :
    [document.documentElement.scrollWidth, ...[...document.querySelectorAll("article *")].filter((each) => each.getBoundingClientRect().right > ${PHONE}).slice(0, 3).map((each) => each.outerHTML.slice(0, 150))]`);
}

/** Return the cells of first columns that a phone cannot show: narrow ones, and those whose code is over the next column. */
function unreadable() {
  return browser.evaluate(`[...document.querySelectorAll("article table:not([class]) tr > :first-child")].filter((cell) => cell.offsetParent).filter((cell) => {
    const { width, right } = cell.getBoundingClientRect();
    return width < 100 || getComputedStyle(cell).position !== "sticky" || [...cell.querySelectorAll("code")].some((code) => code.getBoundingClientRect().right > right + 1);
  }).slice(0, 3).map((cell) => cell.getBoundingClientRect().width + " px: " + cell.textContent.slice(0, 60))`);
}

for (const page of pages) {
  test(page, async () => {
    await open(page, "light", 1280);
    const found = { light: await violations(), headings: await headingErrors(), resources: await foreignOrMute() };
    await open(page, "dark", 1280);
    found.dark = await violations();
    await open(page, "light", PHONE);
    found.phone = [...(await tooWide()), ...(await unreadable())];
    if (page === "404.html") found.headings = [];
    const wrong = Object.entries(found).flatMap(([check, errors]) => errors.map((error) => `${check}: ${error}`));
    assert.ok(!wrong.length, wrong.join("\n"));
  });
}
