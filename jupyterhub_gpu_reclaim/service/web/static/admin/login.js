// The panel's login at the service: a token of a few minutes, for this service only.
// It is held in a private field, never in the page or an address, and handed back.

const SECONDS = 600;
const RENEW_MS = 480000; // before it ends

/** Not for this person or this Hub, in words: another attempt changes nothing. */
export class NotAllowed extends Error {}

export class Login {
  #token = null;
  #asked = null;

  /**
   * @param tokens the Hub's API address of this user's tokens; @param xsrf its XSRF token;
   * @param scope by which this user manages sessions
   */
  constructor(tokens, xsrf, scope) {
    this.tokens = tokens;
    this.xsrf = xsrf;
    this.scopes = ["access:services!service=gpu-reclaim", scope];
  }

  /** The headers of a call to the service. */
  async headers() {
    const old = this.#token;
    if (!old || Date.now() > old.until) {
      this.#asked ??= this.#mint().finally(() => (this.#asked = null));
      await this.#asked;
      if (old) this.#handBack(old);
    }
    return { Authorization: `token ${this.#token.value}` };
  }

  /** The service did not take it, or the page is hidden: it is not kept. */
  end() {
    if (this.#token) this.#handBack(this.#token);
    this.#token = null;
  }

  async #mint() {
    const answer = await fetch(this.tokens, {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-XSRFToken": this.xsrf },
      body: JSON.stringify({
        note: "gpu-reclaim: this admin page",
        expires_in: SECONDS,
        scopes: this.scopes,
      }),
      signal: AbortSignal.timeout(20000),
    });
    if (answer.status >= 400 && answer.status < 500) {
      throw new NotAllowed(`JupyterHub gives this page no token (${answer.status})`);
    }
    if (!answer.ok) throw new Error(`JupyterHub: ${answer.status}`);
    const { id, token } = await answer.json();
    this.#token = { id, value: token, until: Date.now() + RENEW_MS };
  }

  #handBack({ id }) {
    fetch(`${this.tokens}/${encodeURIComponent(id)}`, {
      method: "DELETE",
      headers: { "X-XSRFToken": this.xsrf },
      keepalive: true, // also while the page goes away
    }).catch(() => {}); // it ends by itself
  }
}
