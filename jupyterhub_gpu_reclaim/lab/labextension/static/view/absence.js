/* What a page shows while its session is away: a dialog, or after "Not now" a notice, and
 * always the item in the corner, which cannot be dismissed.
 *
 * Told by watch.js what was found; says each thing once.
 */
import { element } from "./elements.js";
import { Overlay } from "./overlay.js";
import { absentInFull, clockTime } from "./words.js";

const SUSPENDED =
  "Resume to get your kernels, variables and terminals back as they were saved. Unsaved " +
  "changes on this page are kept.";
const RUNS =
  "Your cell is waiting. Resume the session to run it.";
const COMING = "Its kernels, variables and terminals come back as they were saved.";

/** How often the service is asked what came back. */
const LOOKS = 5;

export class Absence {
  /** `watch` resumes, and is told when the person leaves it at that. */
  constructor({ notice, service, hub }, watch) {
    this.notice = notice;
    this.service = service;
    this.hub = hub;
    this.watch = watch;
    this.overlay = new Overlay();
    this.item = null; // in the corner, where the page has made it
    this.found = null; // what was found last, null while the session is there
    this.told = ""; // what the person has been told last
    this.declined = false; // "Not now": a calm notice instead of the dialog
    this.cellWaits = false; // a cell was run, and waits for an answer
    watch.addEventListener("returned", () => {
      this.cellWaits = false;
    });
  }

  /** Whether the state of the session is unknown: there is no network, or no Hub. */
  get isUnreachable() {
    return this.found?.state === "away";
  }

  /** Tells what was found: {state, heading, why}. */
  async tell(found) {
    const { state, why = "" } = found;
    if (["stopping", "passing"].includes(state)) {
      return;
    }
    const telling = [state, why, this.declined, this.cellWaits].join();
    if (telling !== this.told) {
      this.told = telling;
      this.found = found;
      this.item?.tellAbsence(this.briefly(found), () => this.open());
      if (state === "away" || this.declined) {
        this.overlay.hide();
        this.tellBriefly(found);
      } else {
        this.notice.hide();
        this.show(found);
        await this.tellFacts();
      }
    }
    if (state === "coming" && this.overlay.isOpen) {
      const view = await this.service.view();
      this.overlay.progress(view?.phase === "resuming" ? view.steps || [] : []);
    }
  }

  /** Opens the dialog again. */
  open() {
    this.declined = false;
    this.told = "";
    void this.tell(this.found);
  }

  /** A cell was run: its user is asked, or has said once that they need not be. */
  askForCell() {
    this.cellWaits = true;
    // a program may run cells, too, and must not wake a session
    const asked = this.overlay.resumesForCells && navigator.userActivation?.isActive;
    if (asked && this.found?.state === "suspended") {
      this.resume();
    } else if (this.found) {
      this.open();
    }
  }

  show({ state, heading = "", why = "", code = "" }) {
    const { overlay, hub } = this;
    const leave = () => this.leave();
    if (state === "coming") {
      overlay.show({ title: "Bringing your session back …", text: COMING, leave, busy: true });
    } else if (state === "refused") {
      const action = { label: "What can I do?", act: opening(hub.pageUrl) };
      const more = code && element("code", {}, code);
      overlay.show({ title: heading, text: why, more, leave, action });
    } else if (state === "suspended") {
      const label = this.cellWaits ? "Resume and run" : "Resume";
      const action = { label, act: () => this.resume() };
      const text = this.cellWaits ? RUNS : SUSPENDED;
      const title = "Your session is suspended";
      overlay.show({ title, text, leave, action, offersCells: true });
    } else {
      const action = { label: "Start", act: opening(hub.spawnUrl) };
      const text = "It was stopped, so its kernels and variables are gone. Start a new one?";
      overlay.show({ title: "Your server is not running", text, leave, action });
    }
  }

  /** Why, since when, for how long, how large: as far as the service tells. */
  async tellFacts() {
    const { found } = this;
    if (found.state === "suspended") {
      const view = await this.service.view();
      const stands = found === this.found && this.overlay.isOpen;
      if (stands && view?.phase === "suspended") {
        this.overlay.tellFacts(absentInFull(view, this.service.now()));
      }
    }
  }

  /** One state in few words, and what can be done: {label, kind, action}. */
  briefly({ state, heading = "", why = "" }) {
    const { hub } = this;
    if (state === "away") {
      const label = "Your server does not answer. Trying again …";
      return { corner: "No connection", label, kind: "warning" };
    }
    if (state === "coming") {
      const label = "Bringing your session back …";
      return { corner: "Resuming …", label, kind: "busy" };
    }
    if (state === "refused") {
      const action = { label: "What can I do?", act: opening(hub.pageUrl) };
      const label = `${heading}. ${why}`;
      return { corner: "Suspended", label, kind: "warning", action };
    }
    if (state === "suspended") {
      const action = { label: "Resume", act: () => this.resume() };
      const label = "Your session is suspended.";
      return { corner: "Suspended", label, kind: "info", action };
    }
    const action = { label: "Start", act: opening(hub.spawnUrl) };
    const label = "Your server is not running.";
    return { corner: "Not running", label, kind: "info", action };
  }

  /** The same, for reading on: at the lower edge. */
  tellBriefly(found) {
    const { label, kind, action = null } = this.briefly(found);
    this.notice.show(label, kind, { action });
  }

  /** Tells something else while it is away, with the same choice. */
  note(text) {
    if (this.found && !this.overlay.isOpen) {
      const { kind, action = null } = this.briefly(this.found);
      this.notice.show(text, kind, { action });
    }
  }

  leave() {
    this.declined = true;
    this.cellWaits = false;
    this.overlay.hide();
    this.watch.leave();
  }

  resume() {
    this.declined = false;
    if (!this.watch.resuming) {
      void this.watch.resume();
    }
  }

  /** The session is there again; `same` says whether with the kernels of before. */
  end(same) {
    const { told } = this;
    this.told = "";
    this.found = null;
    this.declined = this.cellWaits = false;
    this.overlay.hide();
    this.item?.tell(null); // until the service tells what it does now
    if (told) {
      const message = same
        ? "Your session is back."
        : "Your server is running, with new kernels.";
      this.notice.show(message, "success", { forMs: 6000 });
    }
    if (same) {
      void this.tellMoment();
    }
  }

  /** After it went back to a save point: when that was, and where newer files lie.
   *
   * The service knows that it is back a moment after its page does.
   */
  async tellMoment() {
    for (let looks = 0; looks < LOOKS; looks += 1) {
      const { as_of: then, newer = [] } = (await this.service.view())?.facts?.resumed || {};
      if (then) {
        const files = newer.length ? ` Newer files are in ${newer.join(", ")}.` : "";
        const message =
          `Your session is now as it was at ${clockTime(then)}; outputs below may be` +
          ` newer.${files}`;
        this.notice.show(message, "warning", { forMs: 30000 });
        return;
      }
      if (then === 0) {
        return;
      }
      await new Promise((resolve) => setTimeout(resolve, 1000));
    }
  }
}

function opening(url) {
  return () => void window.open(url, "_blank");
}
