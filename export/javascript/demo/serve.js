/** Serve the page that runs an export in the browser: node demo/serve.js FOLDER [PORT] */

import { createReadStream } from "node:fs";
import { stat } from "node:fs/promises";
import { createServer } from "node:http";
import { extname, join, normalize } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

const PACKAGE = fileURLToPath(new URL("..", import.meta.url));
const TYPES = {
  ".html": "text/html; charset=utf-8",
  ".js": "text/javascript; charset=utf-8",
  ".json": "application/json",
  ".mjs": "text/javascript; charset=utf-8",
  ".wasm": "application/wasm",
};
// With these, pages may share memory between threads, on which ONNX Runtime then runs.
const HEADERS = {
  "Cross-Origin-Opener-Policy": "same-origin",
  "Cross-Origin-Embedder-Policy": "require-corp",
  "Cache-Control": "no-store",
};

/** Return a server of the page; `folders` are the folders of paths besides its own, such as "/export/". */
export function demoServer(folders) {
  const all = {
    ...folders,
    "/dist/": join(PACKAGE, "dist"),
    "/runtime/": join(PACKAGE, "node_modules/onnxruntime-web/dist"),
    "/": join(PACKAGE, "demo"),
  };
  return createServer(async (request, response) => {
    const path = normalize(decodeURIComponent(new URL(request.url, "http://localhost").pathname));
    const prefix = Object.keys(all).find((each) => path.startsWith(each));
    const file = join(all[prefix], path.slice(prefix.length) || "index.html");
    try {
      const { size } = await stat(file);
      const type = TYPES[extname(file)] ?? "application/octet-stream";
      response.writeHead(200, { ...HEADERS, "Content-Type": type, "Content-Length": size });
      createReadStream(file).pipe(response);
    } catch {
      response.writeHead(404, HEADERS).end(`not found: ${path}`);
    }
  });
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  const [folder, port = 8000] = process.argv.slice(2);
  demoServer({ "/export/": folder }).listen(Number(port), "127.0.0.1", () => {
    console.log(`${folder}: http://127.0.0.1:${port}/`);
  });
}
