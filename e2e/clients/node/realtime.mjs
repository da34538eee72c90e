// SPDX-License-Identifier: Apache-2.0

// One realtime session of a real SDK: node realtime.mjs openai|genai. The environment
// is as for client.mjs, and E2E_SILENCE is for how many milliseconds nothing is said
// before a turn is asked for, E2E_LEAVE whether the client closes behind the turn or
// stays until the server closes. Prints one line of JSON: what the SDK's own callbacks
// saw.
import process from "node:process";
import { agentFor } from "./agents.mjs";

const { E2E_ORIGIN: origin, E2E_MODEL: model, E2E_KEY: key, E2E_SILENCE: silence, E2E_LEAVE: leave } = process.env;
const seen = { events: {}, pieces: 0, errors: [], close: null, time_left: "", handle: "", expires_at: 0 };
const count = (name) => (seen.events[name] = (seen.events[name] ?? 0) + 1);
const quiet = () => new Promise((resolve) => setTimeout(resolve, Number(silence ?? 0)));

const sessions = {
  async openai() {
    const { default: OpenAI } = await import("openai");
    const { OpenAIRealtimeWS } = await import("openai/realtime/ws");
    const client = new OpenAI({ apiKey: key, baseURL: `${origin}/v1` });
    const session = new OpenAIRealtimeWS({ model, options: await agentFor(origin) }, client);
    const closed = new Promise((resolve) => session.socket.on("close", (code, reason) => resolve({ code, reason: reason.toString() })));
    session.on("event", (event) => count(event.type));
    session.on("error", (error) => seen.errors.push(error.error?.code ?? error.message));
    session.on("session.created", async (event) => {
      seen.expires_at = event.session.expires_at;
      await quiet();
      session.send({ type: "conversation.item.create", item: { type: "message", role: "user", content: [{ type: "input_text", text: "hello" }] } });
      session.send({ type: "response.create" });
    });
    session.on("response.output_text.delta", (event) => (seen.pieces += event.delta.length > 0 ? 1 : 0));
    session.on("response.done", () => leave && session.close({ code: 4001, reason: "had enough" }));
    seen.close = await closed;
  },

  async genai() {
    const { GoogleGenAI } = await import("@google/genai");
    const ai = new GoogleGenAI({ apiKey: key, httpOptions: { baseUrl: origin, apiVersion: process.env.E2E_API_VERSION ?? "v1beta" } });
    let session;
    const closed = new Promise((resolve) => {
      const onmessage = (message) => {
        for (const name of Object.keys(message)) count(name);
        seen.pieces += message.serverContent?.modelTurn?.parts?.[0]?.text ? 1 : 0;
        seen.time_left ||= message.goAway?.timeLeft ?? "";
        seen.handle ||= message.sessionResumptionUpdate?.newHandle ?? "";
        if (leave && message.serverContent?.turnComplete) session.close();
      };
      const onclose = (event) => resolve({ code: event.code, reason: event.reason });
      const onerror = (event) => seen.errors.push(event.message);
      ai.live
        .connect({ model, config: { responseModalities: ["TEXT"], sessionResumption: {} }, callbacks: { onmessage, onclose, onerror } })
        .then(async (open) => {
          session = open;
          await quiet();
          session.sendClientContent({ turns: "hello", turnComplete: true });
        });
    });
    seen.close = await closed;
  },
};

await sessions[process.argv[2]]();
process.stdout.write(JSON.stringify(seen) + "\n");
