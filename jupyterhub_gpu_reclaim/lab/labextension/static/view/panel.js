/* The small panel above the item: what is known, why (not), and what can be done.
 *
 * Opened by item.js. It only asks: what may be done is decided by the service, and its
 * sentence is shown where it refuses.
 */
import { button, element, terms } from "./elements.js";
import {
  clockTime, inFull, inLocalTime, keepChoices, keepLabel, size, workOf,
} from "./words.js";

export class Panel {
  constructor(service, opener) {
    this.service = service;
    this.opener = opener;
    this.view = null;
    this.changed = () => {}; // set by updates.js, to look again at once
    const name = { id: "gpu-reclaim-panel-title", tabindex: "-1" };
    this.title = element("h2", name, "This session");
    this.facts = element("dl");
    this.reasons = element("ul", { "aria-label": "Why" });
    this.points = element("ul", { "aria-label": "Save points" });
    this.pointsShown = "";
    this.said = element("p", { role: "status", class: "gpu-reclaim-said" });
    this.buttons = element("div", { class: "gpu-reclaim-buttons" });
    const page = { href: service.page, target: "_blank" };
    this.page = element("p");
    this.page.append(element("a", page, "Save points and history"));
    this.node = element("dialog", {
      id: "gpu-reclaim-panel",
      "aria-labelledby": name.id,
    });
    this.node.append(this.title, this.facts, this.reasons, this.points, this.buttons);
    this.node.append(this.said, this.page);
    this.node.addEventListener("keydown", (event) => this.key(event));
    document.addEventListener("pointerdown", (event) => {
      if (!this.node.contains(event.target) && !opener.contains(event.target)) {
        this.close();
      }
    });
    document.body.append(this.node);
  }

  toggle() {
    if (this.node.open) {
      this.close();
    } else {
      void this.open();
    }
  }

  async open() {
    this.said.textContent = this.warnedOf = "";
    this.reasons.replaceChildren();
    this.buttons.replaceChildren();
    this.tell(this.view, true);
    const place = this.opener.getBoundingClientRect();
    this.node.style.right = `${Math.max(8, window.innerWidth - place.right)}px`;
    this.node.style.bottom = `${window.innerHeight - place.top + 6}px`;
    this.node.show();
    this.opener.setAttribute("aria-expanded", "true");
    this.title.focus(); // no button: a second Enter means none of them
    void this.offer();
    const reasons = await this.service.reasons();
    const lines = reasons.map(({ message, code }) => {
      const line = element("li", {}, `${inLocalTime(message)} `);
      line.append(element("code", {}, code));
      return line;
    });
    this.reasons.replaceChildren(...lines);
  }

  /** What the service lets this tab order now; a keep, each with its end. */
  async offer() {
    const now = this.service.now();
    const { orders = {}, longest_keep: longest = 0 } = (await this.service.offers()) ?? {};
    const { keep, rename: _, ...others } = orders; // beside each save point
    const plain = (label, act) => button(label, "gpu-reclaim-plain", act);
    const choices = keepChoices(keep ? longest : 0).map((seconds) =>
      plain(keepLabel(seconds, now), () => this.keep(seconds))
    );
    if (this.view?.kept_until > now) {
      choices.push(plain("Keep no longer", () => this.keep(0)));
    }
    const kinds = Object.entries(others).map(([kind, order]) =>
      plain(order.label, () => this.order(kind, order))
    );
    this.buttons.replaceChildren(...choices, ...kinds);
  }

  close() {
    if (this.node.open) {
      const inside = this.node.contains(document.activeElement);
      this.node.close();
      this.opener.setAttribute("aria-expanded", "false");
      if (inside) {
        this.opener.focus();
      }
    }
  }

  key(event) {
    event.stopPropagation();
    if (event.key === "Escape") {
      this.close();
    }
  }

  /** Shows what is known by now, while it is open. */
  tell(view, opening = false) {
    this.view = view;
    if (view && (opening || this.node.open)) {
      this.facts.replaceChildren(...terms(inFull(view, this.service.now())));
      this.tellPoints(view);
    }
  }

  /** Its save points by name; what else can be done with them is on the session's page. */
  tellPoints({ kept = [] }) {
    const points = kept.filter((one) => one.save_point);
    const shown = points.map(({ id, name }) => id + name).join();
    if (shown === this.pointsShown) {
      return; // a button keeps its focus
    }
    this.pointsShown = shown;
    const lines = points.map((one) => {
      const name = one.name && ` “${one.name}”`;
      const said = `Save point${name} of ${clockTime(one.created)}, ${size(one.logical_bytes)} `;
      const line = element("li", {}, said);
      line.append(button("Rename…", "gpu-reclaim-plain", () => this.rename(one)));
      return line;
    });
    this.points.replaceChildren(...lines);
  }

  async rename({ id, name }) {
    const wanted = window.prompt("Name of this save point", name);
    if (wanted?.trim()) { // a tab takes no name away: it would soon be deleted
      const answer = await this.service.order("rename", { checkpoint: id, name: wanted });
      this.say(answer, () => "The save point was renamed.");
    }
  }

  async keep(seconds) {
    const answer = await this.service.keep(seconds);
    this.view = answer?.ok ? answer.value : this.view;
    await this.offer();
    (this.buttons.querySelector("button") || this.title).focus();
    this.say(answer, ({ kept_until: until }) =>
      until ? `Kept until ${clockTime(until)}.` : "It is no longer kept."
    );
  }

  /** Orders it; where programs that compute would stop, only when that is pressed twice. */
  async order(kind, { done, stops }) {
    const work = stops && !this.warnedOf ? workOf(this.view ?? {}) : "";
    this.warnedOf = work;
    if (work) {
      this.said.textContent = `${work} Its programs stop until it is resumed. Press again to suspend it.`;
      return;
    }
    this.say(await this.service.order(kind), () => done);
  }

  say(answer, words) {
    this.warnedOf = "";
    if (answer === null) {
      this.said.textContent = "The service does not answer. Try again later.";
    } else if (answer.ok) {
      this.said.textContent = words(answer.value);
    } else {
      const { message, code } = answer.value;
      this.said.replaceChildren(`${message} `, element("code", {}, code));
    }
    this.changed();
  }
}
