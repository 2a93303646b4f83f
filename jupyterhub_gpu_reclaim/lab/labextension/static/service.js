/* The service's API for this tab's session, asked with a pass (lab/server_extension.py).
 *
 * Never throws: where the service is away, or this visitor may not ask it, the answer is
 * null, and the page says nothing.
 */
const PATIENCE_MS = 10000;
const HEADER = "X-GPU-Reclaim-Tab";
const LATE = 2 + PATIENCE_MS / 1000; // seconds by which an answer's own time may be late

export class Service {
  /** `connection` is JupyterLab's ServerConnection. */
  constructor({ hubPrefix = "", hubUser = "", hubServerName = "" }, connection) {
    this.connection = connection;
    const base = hubPrefix.replace(/hub\/?$/, "");
    // "-" is the default server; a name of dashes gets one more (SessionKey.path)
    const server = hubServerName.replace(/^-*$/, "$&-");
    this.session = `${encodeURIComponent(hubUser)}/${encodeURIComponent(server)}`;
    this.prefix = `${base}services/gpu-reclaim/`;
    this.pass = null;
    this.ahead = null; // seconds by which the service's clock is ahead of ours
  }

  /** Seconds of the service's clock. */
  now() {
    return Date.now() / 1000 + (this.ahead ?? 0);
  }

  /** Sets our clock by an answer's own time, which is in whole seconds and comes late. */
  setClock(date) {
    const told = Date.parse(date) / 1000 - Date.now() / 1000;
    // so the one that is furthest ahead is nearest to it; and a count never jumps back
    if (this.ahead === null || told > this.ahead || told < this.ahead - LATE) {
      this.ahead = told || 0;
    }
  }

  view() {
    return this.value("GET", "");
  }

  async reasons() {
    return (await this.value("GET", "/why")) || [];
  }

  /** What may be ordered now: {orders: {kind: button}, longest_keep}; null where that is not known. */
  offers() {
    return this.value("GET", "/orders");
  }

  /** Gives an order: {ok, value: the session's view or the refusal}. */
  order(kind, fields = {}) {
    return this.ask("POST", `/${kind}`, fields);
  }

  /** Leaves the session alone for so long; 0 takes that back. */
  keep(seconds) {
    return this.order("keep", { seconds });
  }

  /** The session's page, where its save points are. */
  get page() {
    return `${this.prefix}sessions/${this.session}`;
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
      this.setClock(answer.headers.get("Date"));
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
      credentials: "omit", // the pass says whose tab it is
      signal: AbortSignal.timeout(PATIENCE_MS),
    });
  }

  /** Asks the session's own server for a pass, as JupyterLab asks it for anything. */
  async login() {
    const settings = this.connection.makeSettings();
    const url = `${settings.baseUrl}gpu-reclaim/pass`;
    const init = { method: "POST", signal: AbortSignal.timeout(PATIENCE_MS) };
    const answer = await this.connection.makeRequest(url, init, settings);
    const { pass } = answer.ok ? await answer.json() : {};
    if (!pass) {
      throw new Error("no pass: the server is away, or was started without a key");
    }
    return pass;
  }
}
