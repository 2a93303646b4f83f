// The Hub's admin page with what the service knows of each server: the program that is
// loaded by hub/templates/admin.html. Where the service is away, or the page is another one
// than we know, it says so in one line and leaves the Hub's page as it is.

import { Api, Refusal } from "./api.js";
import { ask, isOpen, reasons, tell } from "./dialogs.js";
import { Login, NotAllowed } from "./login.js";
import { Table } from "./table.js";
import { ORDERS } from "../orders.js";
import { RUNS, STOPS, workOf } from "../session.js";
import { clock, keyOf, nameOf } from "./words.js";

const LOOK_MS = 30000; // between two looks at what may be missed
const AGAIN_MS = 3000; // before another attempt, at first
const LONGEST_MS = 60000;
const STALE_MS = 1500; // the Hub's buttons may be behind for so long
/** Orders whose end is waited for: the phase then, and the one if they fail. */
const ENDS = {
  suspend: ["suspended", "running"],
  resume: ["running", "suspended"],
  nap: ["napping", "running"],
  wake: ["running", "napping"],
};

class Panel {
  constructor(place) {
    const { service, scope, hub, user } = place.dataset;
    const tokens = `${hub}api/users/${encodeURIComponent(user)}/tokens`;
    this.login = new Login(tokens, window.jhdata.xsrf_token, scope);
    this.api = new Api(service, this.login);
    this.note = place.querySelector("[data-note]");
    this.heard = place.querySelector("[data-heard]");
    this.table = new Table(
      () => this.drawn(),
      (action, key) => this.act(action, key),
    );
    this.views = new Map();
    this.asked = new Set(); // sessions whose state was asked for
    this.up = false;
    this.mine = new Map(); // what this person has begun, until it is done
    this.stale = new Map(); // session -> [since when, not again before]
    this.stopping = null;
  }

  // --- the life of the page ---------------------------------------------------------

  begin() {
    document.addEventListener("click", (event) => this.guard(event), true);
    document.addEventListener("visibilitychange", () => this.turned());
    addEventListener("pagehide", () => this.stop());
    addEventListener("pageshow", () => this.turned());
    setInterval(() => document.hidden || this.look(), LOOK_MS);
    setInterval(() => this.refresh(), 500);
    setTimeout(() => this.drawn(), 10000); // a page that never shows a row
    this.turned();
  }

  turned() {
    clearTimeout(this.leaving);
    if (!document.hidden) {
      if (!this.stopping) this.follow();
    } else {
      this.leaving = setTimeout(() => this.stop(), LONGEST_MS);
    }
  }

  stop() {
    this.stopping?.abort();
    this.stopping = null;
    this.login.end();
  }

  /** Follows the service until the page is left; says once that it is away. */
  async follow() {
    const { signal } = (this.stopping = new AbortController());
    let wait = AGAIN_MS;
    while (!signal.aborted) {
      this.attempt = new AbortController();
      try {
        await this.api.follow(
          AbortSignal.any([signal, this.attempt.signal]),
          () => {
            wait = AGAIN_MS;
            this.up = true;
            this.say("");
            this.look();
          },
          (view) => this.changed(view),
        );
      } catch (error) {
        if (signal.aborted) return;
        this.away(error);
        if (error instanceof NotAllowed) return;
      }
      await new Promise((wake) => setTimeout(wake, wait));
      wait = Math.min(2 * wait, LONGEST_MS);
    }
  }

  away(error) {
    console.warn(`gpu-reclaim: ${error}`);
    this.up = false;
    this.table.clear();
    const final = error instanceof NotAllowed;
    const why = final ? error.message : "the service does not answer";
    this.say(`GPU states and buttons are not shown: ${why}.`);
  }

  /** One quiet line above the table. */
  say(words) {
    this.note.hidden = !words;
    const text = this.note.querySelector("[data-words]");
    if (text.textContent !== words) text.textContent = words;
  }

  // --- what is shown ----------------------------------------------------------------

  drawn() {
    if (!this.up) return;
    if (this.table.isStrange) {
      const words = "This version of JupyterHub's admin page is not known here.";
      if (this.note.hidden) console.warn(`gpu-reclaim: ${words}`);
      this.say(`${words} GPU states and buttons are not shown.`);
      return;
    }
    this.table.show((session) => this.views.get(session), Date.now() / 1000);
    if (this.table.rows().some(({ session }) => !this.asked.has(session))) this.look();
  }

  changed(view) {
    const session = keyOf(view.key);
    if (!this.asked.has(session)) return; // of another page of the table
    this.views.set(session, view);
    this.tellEnd(session, view);
    this.drawn();
  }

  /** Asks for the sessions of the rows that there are now. */
  async look() {
    const sessions = this.table.rows().map((one) => one.session);
    if (!this.up || !sessions.length || this.looking) return;
    this.looking = true;
    try {
      this.asked = new Set(sessions);
      const named = new URLSearchParams(sessions.map((one) => ["session", one]));
      const views = await this.api.call(`sessions?${named}`);
      this.views = new Map(views.map((view) => [keyOf(view.key), view]));
    } catch (error) {
      this.attempt.abort(error); // a proxy may hold the stream of one that is away
      return;
    } finally {
      this.looking = false;
    }
    this.drawn();
  }

  /** Has the Hub read its table again where its buttons tell another state. */
  async refresh() {
    if (!this.up || document.hidden || !this.table.isShown || isOpen()) return;
    const now = Date.now();
    let due = false;
    for (const [session, { phase }] of this.views) {
      const settled = RUNS.includes(phase) || phase === "suspended";
      if (!settled || !this.table.contradicts(session, RUNS.includes(phase))) {
        this.stale.delete(session);
        continue;
      }
      const known = this.stale.get(session) ?? { at: now + STALE_MS, wait: STALE_MS };
      if (now >= known.at) due = true;
      this.stale.set(session, known);
    }
    if (!due || this.table.isBusy || this.reading) return;
    for (const known of this.stale.values()) {
      known.wait = Math.min(2 * known.wait, LONGEST_MS);
      known.at = now + known.wait;
    }
    this.reading = true;
    const focus = await this.table.readAgain();
    this.reading = false;
    this.drawn();
    focus();
  }

  // --- what is done -----------------------------------------------------------------

  async act(action, key) {
    const session = keyOf(key);
    const view = this.views.get(session);
    try {
      if (action === "why") await this.why(view);
      else if (!ORDERS[action].stops || (await this.sure(view, ORDERS[action]))) {
        if (action in ENDS) this.mine.set(session, action);
        const begun = await this.api.call(`sessions/${this.path(key)}/${action}`, {
          method: "POST",
        });
        if (!(action in ENDS)) this.heard.textContent = ORDERS[action].done;
        this.changed(begun);
      }
    } catch (error) {
      this.mine.delete(session);
      const known = error instanceof Refusal;
      if (!known) this.attempt.abort(error);
      const sentence = known ? error.message : "The service does not answer. Try again.";
      await tell(nameOf(key), sentence, known && error.code);
    }
  }

  path({ user, server }) {
    const named = (server ?? "").replace(/^-*$/, "$&-"); // models.SessionKey.path
    return `${encodeURIComponent(user)}/${encodeURIComponent(named)}`;
  }

  async why(view) {
    const name = nameOf(view.key);
    if (!RUNS.includes(view.phase)) {
      const { message, hint, code, at } = view.failure;
      const said = `${message} ${hint ?? ""}`.trim();
      const when = at ? ` at ${clock(at)}` : "";
      await reasons(`Why ${name} did not come back${when}`, [[said, code]]);
      return;
    }
    const verdicts = await this.api.call(`sessions/${this.path(view.key)}/why`);
    const title = view.phase === "warned" ? "will be suspended" : "is not suspended";
    const said = verdicts.map(({ message, code, at }) => [
      at > Date.now() / 1000 ? `${message} Not before ${clock(at)}.` : message,
      code,
    ]);
    await reasons(`Why ${name} ${title}`, said);
  }

  /** Asks where a person may be at work. */
  async sure(view, { label }) {
    const work = workOf(view, Date.now() / 1000);
    return !work || ask(`${label}: ${nameOf(view.key)}?`, [work, STOPS], label);
  }

  /** Says to a screen reader how what was begun here has ended. */
  tellEnd(session, view) {
    const begun = this.mine.get(session);
    if (!begun) return;
    const name = nameOf(view.key);
    const naps = begun === "nap" || begun === "wake";
    const failure = naps ? view.facts?.nap_failure : view.failure;
    const pending = naps && view.facts?.intent === begun;
    const [end, back] = ENDS[begun];
    if (view.phase === end) this.heard.textContent = `${name}: ${view.phase}`;
    else if (view.phase === back && failure && !pending) {
      this.heard.textContent = `${name}: ${failure.message}`;
    } else return;
    this.mine.delete(session);
  }

  /** The Hub's "Delete Server" deletes its checkpoints, too: that is asked first. */
  async guard(event) {
    const button = event.target.closest?.("button.stop-button");
    if (!button || button.textContent !== "Delete Server" || this.agreed) return;
    const row = this.table.rows().find((one) => one.row.contains(button));
    const view = row && this.views.get(row.session);
    if (view?.phase !== "suspended") return;
    event.preventDefault();
    event.stopPropagation();
    const lost = "Its session is suspended. With the server it is deleted for good.";
    if (!(await ask(`Delete ${nameOf(view.key)}?`, [lost], "Delete for good"))) return;
    this.agreed = true;
    button.click();
    this.agreed = false;
  }
}

new Panel(document.getElementById("gpu-reclaim-panel")).begin();
