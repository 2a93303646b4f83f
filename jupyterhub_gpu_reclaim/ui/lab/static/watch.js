/* The connection of one tab to its server: looks, tells, and resumes on a click.
 *
 * Made by remoteEntry.js, once per page; asks the server and the Hub, nobody else.
 */
import { Notice } from "./notice.js";

const NAME = "jupyterhub-gpu-reclaim";
const SOON_MS = 1000; // between two looks while something is under way
const LATER_MS = 10000; // and while only a person can change something
const RECONNECT_MS = 5000;

/** What the Hub's page of this server says; a fetch runs no scripts: it wakes nothing. */
async function readHub(url) {
  const answer = await fetch(url, { credentials: "same-origin" });
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const reason = page.querySelector(".gpu-reclaim-reason");
  if (page.querySelector("[data-gpu-reclaim-resume]")) {
    return { state: "saved" };
  }
  if (reason) {
    const heading = page.querySelector("h1")?.textContent.trim() || "";
    return { state: "refused", why: `${heading}. ${reason.textContent.trim()}` };
  }
  if (new URL(answer.url).pathname.includes("/spawn-pending/") && answer.ok) {
    return { state: page.querySelector("#progress-bar") ? "coming" : "stopping" };
  }
  // the Hub says "not running" with 424; anything else is no answer of the Hub's
  return { state: answer.status === 424 ? "stopped" : "away" };
}

/** Kernels and terminals of this page that are shown in its main area. */
function connectionsOf(app) {
  const found = [];
  for (const widget of app.shell.widgets("main")) {
    const kernel = widget.sessionContext?.session?.kernel;
    const terminal = widget.content?.session;
    found.push(...[kernel, terminal].filter((one) => one?.reconnect));
  }
  return found;
}

/** The connection of one tab: looks until the server answers, tells, resumes. */
export class Watch {
  constructor(app, paths, info, parts) {
    const { hubHost = "", hubPrefix = "", hubUser, hubServerName } = paths.urls;
    const server = [hubUser, hubServerName].filter(Boolean).map(encodeURIComponent);
    const hub = hubHost + hubPrefix.replace(/\/?$/, "/");
    this.spawnUrl = `${hub}spawn/${server.join("/")}`;
    this.pageUrl = `${hub}user/${server.join("/")}/`;
    this.app = app;
    this.info = info || {};
    this.parts = parts;
    this.running = false; // is a loop running
    this.told = ""; // what the person has been told last
    this.declined = false; // "Not now": a calm notice instead of a dialog
    this.resuming = false;
    this.notice = new Notice();
    this.dialog = null;
    this.nudge = () => {};
    document.addEventListener("visibilitychange", () => this.nudge());
  }

  /** Called by the page for every request that found no server. */
  async lost() {
    if (this.running) {
      return;
    }
    this.running = true;
    try {
      for (;;) {
        const { state, why = "" } = await this.look();
        if (state === "running") {
          break;
        }
        this.info.isConnected = false; // the page's own requests and saves wait
        this.tell(this.resuming ? "coming" : state, why);
        await this.pause(["coming", "stopping"].includes(state) ? SOON_MS : LATER_MS);
      }
      this.info.isConnected = true;
      await this.back();
    } finally {
      this.info.isConnected = true;
      this.running = false;
    }
  }

  async look() {
    const { ServerConnection } = this.parts;
    const settings = this.app.serviceManager.serverSettings;
    try {
      const answer = await ServerConnection.makeRequest(
        `${settings.baseUrl}api/status?no_track_activity=1`, {}, settings
      );
      const itself = !new URL(answer.url).pathname.includes("/hub/");
      if (itself && ![502, 503, 504].includes(answer.status)) {
        return { state: "running" };
      }
      return await readHub(this.pageUrl);
    } catch (error) {
      console.warn(`${NAME}: ${error}`); // no Hub, no network
      return { state: "away" };
    }
  }

  /** Waits; a click and a look at the tab end the wait, a hidden tab never looks. */
  async pause(milliseconds) {
    do {
      await new Promise((wake) => {
        const timer = setTimeout(wake, milliseconds);
        this.nudge = () => {
          clearTimeout(timer);
          wake();
        };
      });
    } while (document.hidden);
  }

  tell(state, why) {
    const telling = [state, why, this.declined].join();
    if (state === "stopping" || telling === this.told) {
      return;
    }
    this.told = telling;
    this.dialog?.reject();
    const open = (label) => ({
      label,
      act: () => window.open(this.pageUrl, "_blank"),
    });
    const resume = { label: "Resume", act: () => this.resume() };
    const { notice } = this;
    if (state === "coming") {
      notice.show("Bringing your session back …", "busy");
    } else if (state === "refused") {
      notice.show(why, "warning", { button: open("What now?") });
    } else if (state === "away") {
      notice.show("Your server does not answer. Trying again …", "warning");
    } else if (!this.declined) {
      notice.hide();
      void this.ask(state);
    } else if (state === "saved") {
      notice.show("Your session is saved.", "info", { button: resume });
    } else {
      notice.show("Your server is not running.", "info", { button: open("Start") });
    }
  }

  async ask(state) {
    const { Dialog } = this.parts;
    const saved = state === "saved";
    const dialog = new Dialog({
      title: saved ? "Your session is saved" : "Your server is not running",
      body: saved
        ? "It was suspended. Resume it, and its kernels, variables and terminals " +
          "are as you left them."
        : "It was stopped. Start it again?",
      buttons: [
        Dialog.cancelButton({ label: "Not now" }),
        Dialog.okButton({ label: saved ? "Resume" : "Start" }),
      ],
    });
    this.dialog = dialog;
    const result = await dialog.launch();
    if (this.dialog !== dialog) {
      return;
    }
    this.dialog = null;
    if (this.told !== [state, "", false].join()) {
      return; // closed by us: another tab was quicker
    }
    this.declined = true;
    if (result.button.accept && saved) {
      await this.resume();
    } else if (result.button.accept) {
      window.open(this.spawnUrl, "_blank");
    }
    this.nudge();
  }

  async resume() {
    this.resuming = true;
    this.tell("coming", "");
    try {
      await fetch(this.spawnUrl, { credentials: "same-origin" });
    } catch (error) {
      console.warn(`${NAME}: ${error}`); // the next look says how things are
    } finally {
      this.resuming = false;
      this.nudge();
    }
  }

  async back() {
    const { kernels, sessions } = this.app.serviceManager;
    const told = this.told;
    this.told = "";
    this.declined = false;
    this.dialog?.reject();
    const mine = connectionsOf(this.app);
    const before = mine.map((one) => one.id).filter(Boolean);
    await Promise.allSettled([kernels.refreshRunning(), sessions.refreshRunning()]);
    const now = new Set([...kernels.running()].map((model) => model.id));
    const lost = mine.filter((one) => one.connectionStatus !== "connected");
    await Promise.race([
      Promise.allSettled(lost.map((one) => !one.isDisposed && one.reconnect())),
      new Promise((wake) => setTimeout(wake, RECONNECT_MS)),
    ]);
    if (told) {
      const same = before.every((id) => now.has(id));
      const message = same
        ? "Your session is back."
        : "Your server runs, with new kernels.";
      this.notice.show(message, "success", { forMs: 6000 });
    }
  }
}
