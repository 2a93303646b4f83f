/* Looks now and then at what the service says of this session, and tells the page.
 *
 * Made by plugins.js, once per page. Nothing that it does reaches the session's server,
 * so it neither keeps a session awake nor wakes it; a hidden tab asks
 * nothing at all. Where the service is away, nothing is said.
 *
 * While the session naps, anything a person does in the page may wake it: then
 * the service is asked at once, and often for a minute.
 */
import { Rest } from "./rest.js";
import { element } from "./view/elements.js";
import { clockTime, countdown, dueAt, keepChoices, keepLabel, waking } from "./view/words.js";

const CALM_MS = 30000;
const SOON_MS = 2000;
const ACTED_MS = 60000;
const DUE_MS = 120000; // in which a suspend that is due is looked for often
const LONGEST_MS = 600000; // between two questions to a service that is away
const TOPIC = "warning";
const NONE_LEFT = "Your time to keep sessions is used up for now. ";
const NO_ANSWER = "The service does not answer. Try again.";
const WARNING = "Your session will be suspended";

export class Updates {
  constructor({ notice, service, watch }, item) {
    this.notice = notice;
    this.service = service;
    this.watch = watch;
    this.item = item;
    this.rest = new Rest();
    this.warned = false; // was the person told that it is going to be suspended
    this.patience = CALM_MS;
    this.napping = false;
    this.acted = 0; // when the person last did something in the page
    this.looked = 0;
    for (const what of ["keydown", "pointerdown"]) {
      document.addEventListener(what, () => this.act(), { capture: true, passive: true });
    }
    item.panel.changed = () => this.rest.nudge();
    watch.addEventListener("away", () => this.warn(null));
    watch.addEventListener("returned", () => this.rest.nudge());
  }

  async run() {
    for (;;) {
      if (!document.hidden && !this.watch.running) {
        this.looked = Date.now();
        this.tell(await this.service.view());
      }
      await this.rest.pause(this.patience);
    }
  }

  act() {
    this.acted = Date.now();
    if (this.napping && this.acted - this.looked > SOON_MS) {
      this.rest.nudge();
    }
  }

  tell(view) {
    this.item.tell(view);
    this.napping = Boolean(view?.facts?.nap);
    this.warn(view);
    this.watch.hold(["suspending", "releasing", "suspended"].includes(view?.phase));
    this.patience = this.next(view);
    if (view?.phase === "suspended") {
      void this.watch.lost(); // sooner than the page finds out by itself
    }
  }

  /** Milliseconds until the next look. */
  next(view) {
    if (!view) {
      return Math.min(Math.max(CALM_MS, 2 * this.patience), LONGEST_MS);
    }
    if (["warned", "suspending", "releasing", "resuming"].includes(view.phase)) {
      return SOON_MS;
    }
    const mayWake = this.napping && Date.now() - this.acted < ACTED_MS;
    if (mayWake || waking(view, this.service.now())) {
      return SOON_MS;
    }
    // A little before it is due, and after: a warning is then to come at any moment.
    const left = 1000 * (dueAt(view) - this.service.now());
    if (-DUE_MS < left && left < CALM_MS) {
      return left > SOON_MS ? Math.max(left - SOON_MS, SOON_MS) : SOON_MS;
    }
    return CALM_MS;
  }

  /** Warns once of each suspend to come; a warning that was closed stays closed. */
  warn(view) {
    const warned = view?.phase === "warned";
    if (warned && !this.warned) {
      void this.offer(view);
    } else if (!warned && this.warned) {
      this.notice.hide(TOPIC); // it is used again, or it is being suspended
    }
    this.warned = warned;
  }

  async offer(view) {
    const left = () => (view.suspends_at ?? 0) - this.service.now();
    const longest = (await this.service.offers())?.longest_keep ?? Infinity;
    const [seconds] = keepChoices(longest);
    const label = seconds && keepLabel(seconds, this.service.now());
    if (this.warned) {
      this.notice.show(seconds ? WARNING : NONE_LEFT + WARNING, "warning", {
        topic: TOPIC,
        action: seconds ? { label, act: () => this.keep(seconds) } : null,
        ticking: () => `in ${countdown(left())}.`,
      });
    }
  }

  async keep(seconds) {
    const answer = await this.service.keep(seconds);
    if (answer?.ok) {
      const until = answer.value.kept_until;
      const said = until ? `Kept running until ${clockTime(until)}.` : "Kept no longer.";
      const action = until ? { label: "Undo", act: () => this.keep(0) } : null;
      this.notice.show(said, "success", { action, forMs: 10000 });
    } else {
      const { message, code } = answer?.value ?? { message: NO_ANSWER };
      const more = code && element("code", {}, code);
      this.notice.show(message, "warning", { topic: TOPIC, more });
    }
    this.rest.nudge();
  }
}
