/* The small panel above the item: what is known, why (not), Keep and Suspend now.
 *
 * Opened by item.js. It only asks: what may be done is decided by the service, and its
 * sentence is shown where it refuses.
 */
import { button, element, terms } from "./elements.js";
import { clockTime, inFull } from "./words.js";

const HOUR = 3600;

export class Panel {
  constructor(service, opener) {
    this.service = service;
    this.opener = opener;
    this.view = null;
    this.changed = () => {}; // set by who wants to look again at once
    const title = element("h2", { id: "gpu-reclaim-panel-title" }, "This session");
    this.facts = element("dl");
    this.reasons = element("ul", { "aria-label": "Why" });
    this.said = element("p", { role: "status", class: "gpu-reclaim-said" });
    const buttons = element("div", { class: "gpu-reclaim-buttons" });
    buttons.append(
      button("Keep 1 h", "gpu-reclaim-plain", () => this.keep(HOUR)),
      button("Keep 4 h", "gpu-reclaim-plain", () => this.keep(4 * HOUR)),
      button("Suspend now", "gpu-reclaim-plain", () => this.suspend())
    );
    this.node = element("dialog", {
      id: "gpu-reclaim-panel",
      "aria-labelledby": title.id,
    });
    this.node.append(title, this.facts, this.reasons, buttons, this.said);
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
    this.said.textContent = "";
    this.reasons.replaceChildren();
    this.tell(this.view, true);
    const place = this.opener.getBoundingClientRect();
    this.node.style.right = `${Math.max(8, window.innerWidth - place.right)}px`;
    this.node.style.bottom = `${window.innerHeight - place.top + 6}px`;
    this.node.show();
    this.opener.setAttribute("aria-expanded", "true");
    this.node.querySelector("button").focus();
    const reasons = await this.service.reasons();
    const lines = reasons.map((reason) => element("li", {}, reason.message));
    this.reasons.replaceChildren(...lines);
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

  /** Shows what is known by now, where somebody looks. */
  tell(view, opening = false) {
    this.view = view;
    if (view && (opening || this.node.open)) {
      this.facts.replaceChildren(...terms(inFull(view, this.service.now())));
    }
  }

  async keep(seconds) {
    const answer = await this.service.keep(seconds);
    this.say(answer, ({ kept_until: until }) => `Kept until ${clockTime(until)}.`);
  }

  async suspend() {
    this.say(await this.service.suspend(), () => "Your session is being suspended.");
  }

  say(answer, words) {
    if (answer === null) {
      this.said.textContent = "That did not work: nobody answers. Try again later.";
    } else {
      this.said.textContent = answer.ok ? words(answer.value) : answer.value.message;
    }
    this.changed();
  }
}
