/* The service's API for this tab's session, asked with a pass (service/passes.py).
 *
 * Used by tidings.js, panel.js and watch.js. Never throws: where the service is away, or
 * this visitor may not ask it, the answer is null, and whoever asked says nothing.
 */
const PATIENCE_MS = 10000;
const HEADER = "X-GPU-Reclaim-Tab";

export class Service {
  constructor({ hubPrefix = "", hubUser = "", hubServerName = "" }) {
    const base = hubPrefix.replace(/hub\/?$/, "");
    // "-" is the default server; a name of dashes gets one more (SessionKey.path)
    const server = hubServerName.replace(/^-*$/, "$&-");
    this.session = `${encodeURIComponent(hubUser)}/${encodeURIComponent(server)}`;
    this.prefix = `${base}services/gpu-reclaim/`;
    this.pass = null;
    this.ahead = 0; // seconds by which the service's clock is ahead of ours
  }

  /** Seconds of the service's clock. */
  now() {
    return Date.now() / 1000 + this.ahead;
  }

  view() {
    return this.value("GET", "");
  }

  async reasons() {
    return (await this.value("GET", "/why")) || [];
  }

  /** Leaves the session alone for so long: {ok, value: its view or the refusal}. */
  keep(seconds) {
    return this.ask("POST", "/keep", { seconds });
  }

  suspend() {
    return this.ask("POST", "/suspend", {});
  }

  async value(method, path) {
    const answer = await this.ask(method, path);
    return answer?.ok ? answer.value : null;
  }

  async ask(method, path, body) {
    try {
      this.pass ||= await this.login();
      let answer = await this.send(method, path, body);
      if (answer.status === 401) {
        this.pass = await this.login(); // the login or the pass has ended
        answer = await this.send(method, path, body);
      }
      if (!answer.headers.get("Content-Type")?.startsWith("application/json")) {
        return null; // not the service: the proxy, or the Hub
      }
      const value = await answer.json();
      this.ahead = Date.parse(answer.headers.get("Date")) / 1000 - Date.now() / 1000 || 0;
      return { ok: answer.ok, value };
    } catch {
      return null; // away; the next question may find it
    }
  }

  send(method, path, body) {
    return fetch(`${this.prefix}api/sessions/${this.session}${path}`, {
      method,
      body: body && JSON.stringify(body),
      headers: { [HEADER]: this.pass },
      credentials: "same-origin",
      signal: AbortSignal.timeout(PATIENCE_MS),
    });
  }

  /** Visits the service in a hidden frame, through the Hub's login, for a pass. */
  async login() {
    const frame = document.createElement("iframe");
    frame.hidden = true;
    frame.title = "Login of the session's state";
    frame.referrerPolicy = "same-origin"; // it is given to pages of this server only
    frame.src = `${this.prefix}tab/${this.session}`;
    try {
      await new Promise((loaded, late) => {
        frame.addEventListener("load", loaded);
        setTimeout(late, PATIENCE_MS, new Error("no answer"));
        document.body.append(frame);
      });
      const meta = frame.contentDocument?.querySelector('meta[name="gpu-reclaim-tab"]');
      if (!meta) {
        throw new Error("no pass for this visitor");
      }
      return meta.content;
    } finally {
      frame.remove();
    }
  }
}
