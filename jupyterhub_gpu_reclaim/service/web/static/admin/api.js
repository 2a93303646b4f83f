// Calls to the service with the panel's login, and its stream of changes.

import { NotAllowed } from "./login.js";

const STILL_MS = 60000; // the stream says something every 15 s

/** What was asked is refused, in a sentence for people and with its reason's code. */
export class Refusal extends Error {
  constructor({ message, hint, code }) {
    super(`${message} ${hint ?? ""}`.trim());
    this.code = code;
  }
}

export class Api {
  constructor(base, login) {
    this.base = base;
    this.login = login;
  }

  /** Answers as JSON; one session's path is `sessions/…` of its key. */
  async call(path, { method = "GET", body } = {}) {
    const answer = await this.#fetch(path, {
      method,
      body: body && JSON.stringify(body),
      signal: AbortSignal.timeout(60000),
    });
    const told = answer.status === 204 ? null : await answer.json().catch(() => null);
    if (answer.ok) return told;
    if (told?.message && answer.status < 500) {
      throw new Refusal(told);
    }
    throw new Error(`the service: ${answer.status}`);
  }

  /** Calls back for each changed session until the stream ends or breaks. */
  async follow(signal, opened, changed) {
    const answer = await this.#fetch("events?state=0", { signal });
    if (!answer.ok) throw new Error(`the service: ${answer.status}`);
    opened();
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    const ended = () => reader.cancel().catch(() => {});
    let text = "";
    let timer = setTimeout(ended, STILL_MS);
    try {
      for (;;) {
        const { value, done } = await reader.read();
        if (done) return;
        clearTimeout(timer);
        timer = setTimeout(ended, STILL_MS);
        const blocks = (text + value).split("\n\n");
        text = blocks.pop();
        for (const block of blocks) {
          const [event, data] = block.split("\n");
          if (event === "event: session") changed(JSON.parse(data.slice(6)));
        }
      }
    } finally {
      clearTimeout(timer);
      ended();
    }
  }

  async #fetch(path, options) {
    for (const again of [true, false]) {
      const headers = await this.login.headers();
      const answer = await fetch(`${this.base}api/${path}`, {
        ...options,
        headers,
        credentials: "omit",
      });
      if (answer.status !== 401 || !again) {
        if (answer.status === 403) throw new NotAllowed("you may not see them");
        return answer;
      }
      this.login.end();
    }
  }
}
