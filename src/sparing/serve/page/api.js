// Requests to the server that this page came from.

import { toTokens } from "./characters.js";
import { pause } from "./pacing.js";

const TOKEN = "sparing.token";
const TRIES = 6;
const LONGEST_WAIT = 60;

/** An answer that is an error: the server's own words, and the status. */
export class Refused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** No answer at all. */
export class Unreachable extends Error {}

export class Api {
  /**
   * `askToken(wrong)` asks for a token: a promise of it, or of null. `waiting(seconds)` is told
   * how long a busy server wants us to wait, and null when the wait is over.
   */
  constructor({ askToken, waiting }) {
    this.askToken = askToken;
    this.waiting = waiting;
    this.token = stored();
    this.asking = null;
  }

  async models(signal) {
    return (await this.#json("v1/models", undefined, signal)).data;
  }

  /** Tokens of each text with their surprisals. */
  async score(model, texts, top, signal) {
    const { scores } = await this.#json("score", { model, texts, top }, signal);
    return scores.map((each) => ({
      size: each.bytes,
      tokens: toTokens(each.token_bytes, each.token_logprobs, each.top_bytes),
    }));
  }

  attention(model, text, signal) {
    return this.#json("attention", { model, text }, signal);
  }

  /** What may come next, most probable first. */
  async next(model, prompt, top, signal) {
    const body = { model, prompt, max_tokens: 1, temperature: 0, logprobs: top };
    const { choices } = await this.#json("v1/completions", body, signal);
    return tokensOf(choices[0])[0]?.top ?? [];
  }

  /** Yield lists of tokens as the model writes them. */
  async *write(body, signal) {
    const response = await this.#send("v1/completions", { ...body, stream: true }, signal);
    let ended = false;
    for await (const data of events(response.body)) {
      if (data === "[DONE]") {
        ended = true;
        break;
      }
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Refused(chunk.error.message, response.status);
      if (chunk.choices.length) yield tokensOf(chunk.choices[0]);
    }
    if (!ended) throw new Unreachable();
  }

  async #json(path, body, signal) {
    const response = await this.#send(path, body, signal);
    return unlessLost(response.json());
  }

  async #send(path, body, signal) {
    for (let tries = 1; ; tries++) {
      const token = this.token;
      const response = await unlessLost(
        fetch(new URL(path, document.baseURI), {
          method: body ? "POST" : "GET",
          headers: {
            ...(body && { "Content-Type": "application/json" }),
            ...(token && { Authorization: `Bearer ${token}` }),
          },
          body: body && JSON.stringify(body),
          signal,
        }),
      );
      if (response.ok) return response;
      const busy = response.status === 429 || response.status === 503;
      if (response.status === 401) await this.#newToken(token);
      else if (busy && tries < TRIES) await this.#wait(response, tries, signal);
      else throw new Refused(await message(response), response.status);
    }
  }

  /** Requests that are refused together ask only once. */
  async #newToken(refused) {
    if (this.token !== refused) return;
    this.asking ??= this.askToken(Boolean(refused)).finally(() => (this.asking = null));
    const token = await this.asking;
    if (!token) throw new Refused("The server asks for a token.", 401);
    this.token = token;
    store(token);
  }

  async #wait(response, tries, signal) {
    const asked = Number(response.headers.get("Retry-After"));
    const seconds = Math.min(asked > 0 ? asked : 2 ** (tries - 1), LONGEST_WAIT);
    try {
      for (let left = Math.ceil(seconds); left > 0; left--) {
        this.waiting(left);
        await pause(1000 * Math.min(1, seconds), signal);
      }
    } finally {
      this.waiting(null);
    }
  }
}

function tokensOf({ logprobs }) {
  return logprobs ? toTokens(logprobs.bytes, logprobs.token_logprobs, logprobs.top_bytes) : [];
}

/** The data of server-sent events. */
export async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  try {
    for (;;) {
      const { value, done } = await unlessLost(reader.read());
      if (done) return;
      held = (held + value).replace(/\r\n/g, "\n");
      const parts = held.split("\n\n");
      held = parts.pop();
      for (const part of parts) {
        const lines = part.split("\n").filter((line) => line.startsWith("data:"));
        if (lines.length) yield lines.map((line) => line.slice(5).trimStart()).join("\n");
      }
    }
  } finally {
    // Leaving early tells the server to stop.
    await reader.cancel().catch(() => {});
  }
}

/** Browsers report every lost connection as a TypeError. */
async function unlessLost(promise) {
  try {
    return await promise;
  } catch (problem) {
    throw problem instanceof TypeError ? new Unreachable() : problem;
  }
}

async function message(response) {
  const wanted = `The server answered ${response.status}.`;
  return response.json().then(
    ({ error }) => error?.message ?? wanted,
    () => wanted,
  );
}

// A browser may forbid storage; then the token lives as long as the page.
function stored() {
  try {
    return sessionStorage.getItem(TOKEN);
  } catch {
    return null;
  }
}

function store(token) {
  try {
    sessionStorage.setItem(TOKEN, token);
  } catch {
    // See above.
  }
}
