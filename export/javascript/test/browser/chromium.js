/** Headless Chromium, controlled through pipes by the Chrome DevTools Protocol. */

import { spawn, spawnSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const NAMES = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
// Without hinting, letters are drawn in the same way each time.
const FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--font-render-hinting=none", "--remote-debugging-pipe"];

/** Return the path of Chromium, CHROMIUM or one of the usual names; undefined if there is none. */
export function findChromium() {
  const names = process.env.CHROMIUM ? [process.env.CHROMIUM] : NAMES;
  return names.find((name) => spawnSync(name, ["--version"]).status === 0);
}

/** A running browser with one page. */
export class Chromium {
  #pending = new Map();
  #lastId = 0;
  #session;

  /** Start a browser, and open an empty page. */
  static async start(path) {
    const browser = new Chromium(path);
    const { targetId } = await browser.send("Target.createTarget", { url: "about:blank" });
    const { sessionId } = await browser.send("Target.attachToTarget", { targetId, flatten: true });
    browser.#session = sessionId;
    return browser;
  }

  constructor(path) {
    this.profile = mkdtempSync(join(tmpdir(), "chromium-"));
    const pipes = ["ignore", "ignore", "ignore", "pipe", "pipe"];
    this.process = spawn(path, [...FLAGS, `--user-data-dir=${this.profile}`], { stdio: pipes });
    let received = "";
    this.process.stdio[4].setEncoding("utf8").on("data", (text) => {
      const messages = (received + text).split("\0");
      received = messages.pop();
      for (const { id, result, error } of messages.map(JSON.parse)) {
        const waiting = this.#pending.get(id);
        if (error) waiting?.reject(new Error(error.message));
        else waiting?.resolve(result);
        this.#pending.delete(id);
      }
    });
  }

  /** Send a command of the protocol, and return its result. */
  send(method, params = {}) {
    const id = ++this.#lastId;
    const session = this.#session ? { sessionId: this.#session } : {};
    this.process.stdio[3].write(`${JSON.stringify({ id, method, params, ...session })}\0`);
    return new Promise((resolve, reject) => this.#pending.set(id, { resolve, reject }));
  }

  /** Open a URL in the page. */
  async open(url) {
    await this.send("Page.navigate", { url });
    await this.until("document.readyState === 'complete'");
  }

  /** Return the value of an expression in the page, or of its promise. */
  async evaluate(expression) {
    const options = { expression, awaitPromise: true, returnByValue: true };
    const { result, exceptionDetails } = await this.send("Runtime.evaluate", options);
    if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
    return result.value;
  }

  /** Wait until an expression is true in the page. */
  async until(expression, seconds = 60) {
    for (const end = Date.now() + 1000 * seconds; Date.now() < end; ) {
      if (await this.evaluate(expression)) return;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
    throw new Error(`not true after ${seconds} s: ${expression}`);
  }

  /** Emulate a window without animations: its width, its color scheme, and the pixels of the screen in one of the page. */
  async emulate(width, scheme, scale = 1) {
    const features = [
      { name: "prefers-color-scheme", value: scheme },
      { name: "prefers-reduced-motion", value: "reduce" },
    ];
    await this.send("Emulation.setEmulatedMedia", { features });
    const size = { width, height: 900, deviceScaleFactor: scale, mobile: false };
    await this.send("Emulation.setDeviceMetricsOverride", size);
  }

  /** Return a PNG of a rectangle of the page, which may be larger than the window. */
  async screenshot(rectangle) {
    const clip = { ...rectangle, scale: 1 };
    const { data } = await this.send("Page.captureScreenshot", { format: "png", clip, captureBeyondViewport: true });
    return Buffer.from(data, "base64");
  }

  /** End the browser. */
  async close() {
    const ended = new Promise((resolve) => this.process.once("exit", resolve));
    await this.send("Browser.close").catch(() => {});
    await ended;
    rmSync(this.profile, { recursive: true, force: true, maxRetries: 3 });
  }
}
