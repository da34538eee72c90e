// SPDX-License-Identifier: Apache-2.0

// One real client a run: node client.mjs NAME, or with deno or bun. Everything else is in the
// environment: E2E_ORIGIN (what the base URL starts with), E2E_MODEL, E2E_KEY,
// and for a proxy E2E_PROXY with E2E_MODE forward or tunnel; with intercepted the
// proxy is in HTTPS_PROXY. Trust comes from NODE_EXTRA_CA_CERTS. E2E_TRACEPARENT is
// a field for each request. Prints "first" at the first piece of the answer, and at
// the end one line of JSON.
import { createHash } from "node:crypto";
import process from "node:process";
import { agentFor } from "./agents.mjs";

const { E2E_ORIGIN: origin, E2E_MODEL: model, E2E_KEY: key, E2E_PROXY: proxy, E2E_MODE: mode, E2E_TRACEPARENT: traceparent } = process.env;
const defaultHeaders = { traceparent };
const hash = createHash("sha256");
let chunks = 0;
let protocol = "";

function piece(bytes) {
  if (bytes.length === 0) return;
  hash.update(bytes);
  if (chunks++ === 0) process.stdout.write("first\n");
}

// Node 20's own fetch reads no proxy variables; undici's dispatcher is what its
// documentation tells people to set. Deno and Bun read the variables.
async function useProxy() {
  if (globalThis.Deno || globalThis.Bun) return;
  if (!proxy && mode !== "intercepted") return;
  const { setGlobalDispatcher, ProxyAgent, EnvHttpProxyAgent } = await import("undici");
  if (mode === "forward") {
    setGlobalDispatcher(new ProxyAgent({ uri: proxy, proxyTunnel: false }));
  } else if (mode === "intercepted") {
    setGlobalDispatcher(new EnvHttpProxyAgent());
  } else {
    setGlobalDispatcher(new EnvHttpProxyAgent({ httpProxy: proxy, httpsProxy: proxy, noProxy: "" }));
  }
}

const messages = [{ role: "user", content: "hello" }];

const clients = {
  async openai() {
    const { default: OpenAI } = await import("openai");
    const client = new OpenAI({ apiKey: key, baseURL: `${origin}/v1`, maxRetries: 0, defaultHeaders });
    const stream = await client.chat.completions.create({ model, messages, stream: true });
    for await (const event of stream) piece(event.choices[0]?.delta?.content ?? "");
  },

  async "openai-responses"() {
    const { default: OpenAI } = await import("openai");
    const client = new OpenAI({ apiKey: key, baseURL: `${origin}/v1`, maxRetries: 0, defaultHeaders });
    const stream = await client.responses.create({ model, input: "hello", stream: true });
    for await (const event of stream) if (event.type === "response.output_text.delta") piece(event.delta);
  },

  async anthropic() {
    const { default: Anthropic } = await import("@anthropic-ai/sdk");
    const client = new Anthropic({ apiKey: key, baseURL: origin, maxRetries: 0, defaultHeaders });
    const stream = client.messages.stream({ model, max_tokens: 100, messages });
    stream.on("text", piece);
    await stream.finalMessage();
  },

  async genai() {
    const { GoogleGenAI } = await import("@google/genai");
    const client = new GoogleGenAI({ apiKey: key, httpOptions: { baseUrl: origin, headers: defaultHeaders } });
    const stream = await client.models.generateContentStream({ model, contents: "hello" });
    for await (const event of stream) piece(event.text ?? "");
  },

  async fetch() {
    const response = await fetch(`${origin}/v1/chat/completions`, {
      method: "POST",
      headers: { "content-type": "application/json", authorization: `Bearer ${key}`, traceparent },
      body: JSON.stringify({ model, messages, stream: true }),
    });
    if (!response.ok) throw new Error(`${response.status} ${await response.text()}`);
    for await (const bytes of response.body) piece(bytes);
  },

  async ws() {
    const { default: WebSocket } = await import("ws");
    const url = `${origin.replace(/^http/, "ws")}/v1/realtime?model=${encodeURIComponent(model)}`;
    const agent = proxy || mode === "intercepted" ? await agentFor(origin) : {};
    const socket = new WebSocket(url, ["realtime"], { headers: { authorization: `Bearer ${key}`, traceparent }, ...agent });
    await new Promise((resolve, reject) => {
      socket.on("error", reject);
      socket.on("open", () => {
        protocol = socket.protocol;
        socket.send(JSON.stringify({ type: "response.create" }));
      });
      socket.on("message", (data) => {
        const event = JSON.parse(data.toString());
        if (event.type === "response.output_text.delta") piece(event.delta);
        if (event.type === "error") reject(new Error(data.toString()));
        if (event.type === "response.done") socket.close(1000, "done");
      });
      socket.on("close", (code, reason) => (code === 1000 ? resolve() : reject(new Error(`closed with ${code} ${reason}`))));
    });
  },

  async "openai-realtime"() {
    const { default: OpenAI } = await import("openai");
    const { OpenAIRealtimeWS } = await import("openai/realtime/ws");
    const client = new OpenAI({ apiKey: key, baseURL: `${origin}/v1` });
    const session = new OpenAIRealtimeWS({ model, options: { headers: defaultHeaders, ...(await agentFor(origin)) } }, client);
    await new Promise((resolve, reject) => {
      session.on("error", reject);
      session.on("session.created", () => session.send({ type: "response.create" }));
      session.on("response.output_text.delta", (event) => piece(event.delta));
      session.on("response.done", () => session.close({ code: 1000, reason: "done" }));
      session.socket.on("close", (code, reason) => (code === 1000 ? resolve() : reject(new Error(`closed with ${code} ${reason}`))));
    });
  },

  async "genai-live"() {
    const { GoogleGenAI } = await import("@google/genai");
    const client = new GoogleGenAI({ apiKey: key, httpOptions: { baseUrl: origin } });
    await new Promise((resolve, reject) => {
      let session;
      const onmessage = (message) => {
        piece(message.serverContent?.modelTurn?.parts?.[0]?.text ?? "");
        if (message.serverContent?.turnComplete) session.close();
      };
      const onclose = (event) => (event.code === 1005 ? resolve() : reject(new Error(`closed with ${event.code} ${event.reason}`)));
      client.live.connect({ model, callbacks: { onmessage, onclose, onerror: reject } }).then((open) => {
        session = open;
        session.sendClientContent({ turns: "hello" });
      }, reject);
    });
  },
};

try {
  await useProxy();
  await clients[process.argv[2]]();
  process.stdout.write(JSON.stringify({ text_sha256: hash.digest("hex"), chunks, protocol }) + "\n");
} catch (error) {
  process.stderr.write(`${error.stack ?? error}\n${error.cause?.stack ?? ""}\n`);
  process.exit(1);
}
