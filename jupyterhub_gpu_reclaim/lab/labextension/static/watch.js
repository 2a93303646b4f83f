/* The connection of one tab to its server: looks, tells, and resumes on a click.
 *
 * Made by plugins.js, once per page. It never resumes by itself: an open tab polls for
 * ever, and only a person's click may wake a session.
 */
import { Hub } from "./hub.js";
import { Overlay } from "./view/overlay.js";
import { putAway } from "./quiet.js";
import { reconnect } from "./reconnect.js";
import { Rest } from "./rest.js";

const NAME = "jupyterhub-gpu-reclaim";
const SOON_MS = 1000; // between two looks while something is under way
const LATER_MS = 10000; // and while only a person can change something
const PASSING = 20; // looks for which a server may be just coming up
const UNDER_WAY = ["coming", "stopping", "passing"];
const SUSPENDED =
  "It was suspended. Resume it, and its kernels, variables and terminals are as you " +
  "left them. What is on this page stays, saved or not.";

/** The connection of one tab: looks until the server answers, tells, resumes. */
export class Watch {
  constructor(app, urls, info, { notice, service, Dialog, ServerConnection }) {
    this.app = app;
    this.info = info || {};
    this.hub = new Hub(urls);
    this.notice = notice;
    this.service = service;
    this.dialogs = Dialog.tracker;
    this.ServerConnection = ServerConnection;
    this.overlay = new Overlay();
    this.rest = new Rest();
    this.running = false; // is a loop running
    this.began = this.ended = () => {}; // set by who wants to know
    this.told = ""; // what the person has been told last
    this.declined = false; // "Not now": a calm notice instead of the dialog
    this.resuming = false;
  }

  /** Called by the page for every request that found no server. */
  async lost() {
    if (this.running) {
      return;
    }
    this.running = true;
    this.began();
    try {
      await this.follow();
      this.info.isConnected = true;
      await this.back();
    } finally {
      this.info.isConnected = true;
      this.running = false;
    }
  }

  /** While the session is being suspended, the page's own saves wait. */
  hold(on) {
    if (!this.running) {
      this.info.isConnected = !on;
    }
  }

  /** Looks and tells until the server answers. */
  async follow() {
    for (let passing = 0; ; ) {
      const found = await this.look();
      passing = found.state === "passing" ? passing + 1 : 0;
      if (found.state === "running") {
        return;
      }
      if (passing > PASSING) {
        found.state = "away";
      }
      this.info.isConnected = false; // the page's own requests and saves wait
      if (!document.hidden) {
        putAway(this.dialogs);
        this.tell(this.resuming ? { state: "coming" } : found);
        await this.progress();
      }
      const soon = this.resuming || UNDER_WAY.includes(found.state);
      await this.rest.pause(soon ? SOON_MS : LATER_MS);
    }
  }

  async look() {
    const { ServerConnection } = this;
    const settings = this.app.serviceManager.serverSettings;
    try {
      const answer = await ServerConnection.makeRequest(
        `${settings.baseUrl}api/status?no_track_activity=1`, {}, settings
      );
      const itself = !new URL(answer.url).pathname.includes("/hub/");
      if (itself && ![502, 503, 504].includes(answer.status)) {
        return { state: "running" };
      }
      return await this.hub.read();
    } catch (error) {
      console.warn(`${NAME}: ${error}`); // no Hub, no network
      return { state: "away" };
    }
  }

  tell({ state, heading = "", why = "" }) {
    const telling = [state, why, this.declined].join();
    if (["stopping", "passing"].includes(state) || telling === this.told) {
      return;
    }
    this.told = telling;
    if (state === "away" || this.declined) {
      this.overlay.hide();
      this.tellBriefly(state, heading, why);
      return;
    }
    this.notice.hide();
    const open = (url) => () => void window.open(url, "_blank");
    const leave = () => this.leave();
    const { overlay, hub } = this;
    if (state === "coming") {
      const text = "Its kernels, variables and terminals come back as you left them.";
      overlay.show({ title: "Bringing your session back …", text, leave, busy: true });
    } else if (state === "refused") {
      const action = { label: "What now?", act: open(hub.pageUrl) };
      overlay.show({ title: heading, text: why, leave, action });
    } else if (state === "suspended") {
      const action = { label: "Resume", act: () => this.resume() };
      overlay.show({ title: "Your session is suspended", text: SUSPENDED, leave, action });
    } else {
      const action = { label: "Start", act: open(hub.spawnUrl) };
      const text = "It was stopped. Start it again?";
      overlay.show({ title: "Your server is not running", text, leave, action });
    }
  }

  /** The same for somebody who wants to read on: at the lower edge. */
  tellBriefly(state, heading, why) {
    const { notice, hub } = this;
    const open = (label) => ({
      label,
      act: () => void window.open(hub.pageUrl, "_blank"),
    });
    const resume = { label: "Resume", act: () => this.resume() };
    if (state === "away") {
      notice.show("Your server does not answer. Trying again …", "warning");
    } else if (state === "coming") {
      notice.show("Bringing your session back …", "busy");
    } else if (state === "refused") {
      notice.show(`${heading}. ${why}`, "warning", { action: open("What now?") });
    } else if (state === "suspended") {
      notice.show("Your session is suspended.", "info", { action: resume });
    } else {
      notice.show("Your server is not running.", "info", { action: open("Start") });
    }
  }

  /** "Not now", or Escape. */
  leave() {
    this.declined = true;
    this.overlay.hide();
    this.rest.nudge();
  }

  async progress() {
    if (this.overlay.isOpen && this.told.startsWith("coming")) {
      const view = await this.service.view();
      this.overlay.progress(view?.phase === "resuming" ? view.steps || [] : []);
    }
  }

  async resume() {
    this.resuming = true;
    this.declined = false;
    this.rest.nudge();
    try {
      await this.hub.resume();
    } catch (error) {
      console.warn(`${NAME}: ${error}`); // the next look says how things are
    } finally {
      this.resuming = false;
      this.rest.nudge();
    }
  }

  /** The server answers: everything on this page gets its connection back. */
  async back() {
    const told = this.told;
    this.told = "";
    this.declined = false;
    this.overlay.hide();
    const same = await reconnect(this.app);
    putAway(this.dialogs);
    if (told) {
      const message = same
        ? "Your session is back."
        : "Your server runs, with new kernels.";
      this.notice.show(message, "success", { forMs: 6000 });
      this.running = false;
      this.ended();
    }
  }
}
