// SPDX-License-Identifier: Apache-2.0

// One page in a real browser a run: node chromium.mjs fetch|ws. E2E_CHROMIUM is the
// browser, which trusts what HOME's database of Mozilla's library has and is given no
// other leave; the rest is as for client.mjs. The page is one of the origin itself, so
// that nothing is asked of it that a site's own page need not ask. The browser is
// driven by the DevTools protocol over pipes.
import { spawn } from "node:child_process";
import process from "node:process";

const { E2E_CHROMIUM, E2E_ORIGIN: origin, E2E_MODEL: model, E2E_KEY: key, E2E_PROXY, HTTPS_PROXY, E2E_TRACEPARENT: traceparent, HOME } = process.env;
const proxy = E2E_PROXY || HTTPS_PROXY;

// These two run inside the page. report is what it calls with each piece of text.
const pages = {
  async fetch({ model, key, traceparent }) {
    const response = await fetch("/v1/chat/completions", {
      method: "POST",
      headers: { "content-type": "application/json", authorization: `Bearer ${key}`, traceparent },
      body: JSON.stringify({ model, messages: [{ role: "user", content: "hello" }], stream: true }),
    });
    if (!response.ok) throw new Error(`${response.status} ${await response.text()}`);
    const decoder = new TextDecoder();
    for (const reader = response.body.getReader(); ; ) {
      const { done, value } = await reader.read();
      if (done) return;
      report(decoder.decode(value, { stream: true }));
    }
  },

  ws({ origin, model, key }) {
    const socket = new WebSocket(`${origin.replace(/^http/, "ws")}/v1/realtime?model=${encodeURIComponent(model)}`, ["realtime", `openai-insecure-api-key.${key}`]);
    return new Promise((resolve, reject) => {
      socket.onopen = () => socket.send(JSON.stringify({ type: "response.create" }));
      socket.onmessage = (message) => {
        const event = JSON.parse(message.data);
        if (event.type === "response.output_text.delta") report(event.delta);
        if (event.type === "response.done") socket.close(1000, "done");
      };
      socket.onclose = (event) => (event.code === 1000 ? resolve() : reject(new Error(`closed with ${event.code} ${event.reason}`)));
    });
  },
};

const browser = spawn(
  E2E_CHROMIUM,
  ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking", "--remote-debugging-pipe",
    `--user-data-dir=${HOME}/profile`, ...(proxy ? [`--proxy-server=${proxy}`, "--proxy-bypass-list=<-loopback>"] : ["--no-proxy-server"]), "about:blank"],
  { stdio: ["ignore", "ignore", "inherit", "pipe", "pipe"] },
);
const [, , , toBrowser, fromBrowser] = browser.stdio;
const answers = new Map();
const listeners = new Map();
let buffered = "";
fromBrowser.setEncoding("utf8").on("data", (text) => {
  const messages = (buffered + text).split("\0");
  buffered = messages.pop();
  for (const message of messages.map((one) => JSON.parse(one))) {
    if (message.id) answers.get(message.id)(message);
    else listeners.get(message.method)?.(message.params);
  }
});

let last = 0;
function call(method, params = {}, sessionId = undefined) {
  const id = ++last;
  toBrowser.write(JSON.stringify({ id, method, params, sessionId }) + "\0");
  return new Promise((resolve, reject) => {
    answers.set(id, ({ result, error }) => (error ? reject(new Error(`${method}: ${error.message}`)) : resolve(result)));
  });
}

async function run() {
  const { createHash } = await import("node:crypto");
  const hash = createHash("sha256");
  let chunks = 0;
  const { targetInfos } = await call("Target.getTargets");
  const { targetId } = targetInfos.find((one) => one.type === "page");
  const { sessionId } = await call("Target.attachToTarget", { targetId, flatten: true });
  listeners.set("Runtime.bindingCalled", ({ payload }) => {
    hash.update(payload);
    if (chunks++ === 0) process.stdout.write("first\n");
  });
  await call("Runtime.enable", {}, sessionId);
  await call("Runtime.addBinding", { name: "report" }, sessionId);
  await call("Page.enable", {}, sessionId);
  const loaded = new Promise((resolve) => listeners.set("Page.loadEventFired", resolve));
  // A document of the origin; that it is an error does not matter.
  const { errorText } = await call("Page.navigate", { url: `${origin}/` }, sessionId);
  if (errorText) throw new Error(`${origin}: ${errorText}`);
  await loaded;
  const expression = `(${pages[process.argv[2]].toString().replace(/^(async )?(\w+)/, "$1function")})(${JSON.stringify({ origin, model, key, traceparent })})`;
  const { exceptionDetails } = await call("Runtime.evaluate", { expression, awaitPromise: true }, sessionId);
  if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
  process.stdout.write(JSON.stringify({ text_sha256: hash.digest("hex"), chunks, protocol: "" }) + "\n");
}

const gone = new Promise((_, reject) => browser.once("exit", (code) => reject(new Error(`the browser ended with ${code}`))));
try {
  await Promise.race([run(), gone]);
  gone.catch(() => {}); // as it is asked to
  await call("Browser.close");
} catch (error) {
  process.stderr.write(`${error.stack}\n`);
  browser.kill("SIGKILL");
  process.exit(1); // its pipes may be held by a child of its own
}
