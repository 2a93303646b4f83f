/* The connection of one tab to its server: looks, has it told, and resumes on a click.
 *
 * Made by plugins.js, once per page. It never resumes by itself: an open tab polls for
 * ever, and only what a person does may wake a session. What is seen meanwhile is in
 * view/absence.js; cells and saves that wait are in runs.js and saves.js.
 *
 * Its events: "away" when the server is found missing, "left" when the person does not
 * want it back now, "returned" when it is there again.
 */
import { Absence } from "./view/absence.js";
import { Hub } from "./hub.js";
import { putAway } from "./quiet.js";
import { reconnect } from "./reconnect.js";
import { Rest } from "./rest.js";

const NAME = "jupyterhub-gpu-reclaim";
const SOON_MS = 1000; // between two looks while something is under way
const LATER_MS = 10000; // and while only a person can change something
const PASSING = 20; // looks for which a server may be just coming up
const UNDER_WAY = ["coming", "stopping", "passing"];

/** The connection of one tab: looks until the server answers, and resumes. */
export class Watch extends EventTarget {
  constructor(app, urls, info, { notice, service, Dialog, ServerConnection }) {
    super();
    this.app = app;
    this.info = info || {};
    this.hub = new Hub(urls);
    this.dialogs = Dialog.tracker;
    this.ServerConnection = ServerConnection;
    this.rest = new Rest();
    this.absence = new Absence({ notice, service, hub: this.hub }, this);
    this.running = false; // is a loop running
    this.away = false; // what needs the server has to wait
    this.resuming = false;
    this.ends = null; // the Hub's events, while a session that comes back is followed
  }

  /** Called by the page for every request that found no server. */
  async lost() {
    if (this.running) {
      return;
    }
    this.running = true;
    try {
      await this.follow();
      this.info.isConnected = true;
      await this.back();
    } finally {
      this.info.isConnected = true;
      this.running = false;
    }
  }

  /** While the session is being suspended, what needs its server waits already. */
  hold(on) {
    if (!this.running) {
      this.info.isConnected = !on;
      this.set(on);
    }
  }

  set(away) {
    if (away !== this.away) {
      this.away = away;
      this.dispatchEvent(new Event(away ? "away" : "returned"));
    }
  }

  /** Looks and has it told until the server answers. */
  async follow() {
    for (let passing = 0; ; ) {
      const found = await this.look();
      passing = found.state === "passing" ? passing + 1 : 0;
      this.listen(found);
      if (found.state === "running") {
        return;
      }
      if (passing > PASSING) {
        found.state = "away";
      }
      this.info.isConnected = false; // the page's own requests wait
      this.set(true);
      if (!document.hidden) {
        putAway(this.dialogs);
        await this.absence.tell(this.resuming ? { state: "coming" } : found);
      }
      const soon = this.resuming || UNDER_WAY.includes(found.state);
      await this.rest.pause(soon ? SOON_MS : LATER_MS);
    }
  }

  /** Hears the end of a return at once, where a person waits for it; else looks tell it. */
  listen({ state, events }) {
    if (state !== "coming") {
      this.ends?.close();
      this.ends = null;
    } else if (events && !this.ends && !document.hidden) {
      const ends = (this.ends = new EventSource(events));
      ends.onerror = () => ends.close();
      ends.onmessage = ({ data }) => {
        const { ready, failed } = JSON.parse(data);
        if (ready || failed) {
          ends.close();
          this.rest.nudge();
        }
      };
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

  /** "Not now", or Escape. */
  leave() {
    this.dispatchEvent(new Event("left"));
    this.rest.nudge();
  }

  /** Looks at once. */
  nudge() {
    this.rest.nudge();
  }

  async resume() {
    this.resuming = true;
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
    const same = await reconnect(this.app);
    putAway(this.dialogs);
    this.running = false;
    this.absence.end(same);
    this.set(false);
  }
}
