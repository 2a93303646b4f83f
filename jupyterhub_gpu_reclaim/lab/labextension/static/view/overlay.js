/* The calm dialog over a page whose session is away: suspended, coming back, or refused.
 *
 * Used by absence.js. The page stays below it as it is, with all its unsaved cells. It is
 * the browser's own modal dialog: the focus stays inside, Escape leaves it.
 */
import { button, element, terms } from "./elements.js";
import { percent, stepText } from "./words.js";

const CHOICE = "jupyterhub-gpu-reclaim:resume-for-cells"; // of this browser

export class Overlay {
  constructor() {
    this.title = element("h2", { id: "gpu-reclaim-title", tabindex: "-1" });
    this.text = element("p", { id: "gpu-reclaim-text" });
    this.facts = element("dl", { class: "gpu-reclaim-facts" });
    this.bar = element("progress", { max: "100", "aria-labelledby": this.title.id });
    this.step = element("p", { class: "gpu-reclaim-step", "aria-live": "polite" });
    this.cells = element("label", { class: "gpu-reclaim-choice" });
    this.choice = element("input", { type: "checkbox" });
    this.choice.addEventListener("change", () => remember(this.choice.checked));
    this.cells.append(this.choice, " Resume without asking when I run a cell");
    this.buttons = element("div", { class: "gpu-reclaim-buttons" });
    this.node = element("dialog", {
      id: "gpu-reclaim-overlay",
      "aria-labelledby": this.title.id,
      "aria-describedby": this.text.id,
    });
    const { title, text, facts, bar, step, cells, buttons } = this;
    this.node.append(title, text, facts, bar, step, cells, buttons);
    this.node.addEventListener("cancel", (event) => {
      event.preventDefault();
      this.leave();
    });
    document.body.append(this.node);
    this.leave = () => {};
  }

  /** Whether the person wants no question when they run a cell. */
  get resumesForCells() {
    return chosen();
  }

  /** Shows it; `leave` is what "Not now" and Escape do, `action` is {label, act}.
   *
   * `more` is a link behind the text.
   */
  show({ title, text, more = "", leave, action = null, busy = false, offersCells = false }) {
    this.leave = leave;
    this.title.textContent = title;
    this.text.replaceChildren(`${text} `, more);
    this.facts.replaceChildren();
    this.bar.hidden = this.step.hidden = !busy;
    this.bar.removeAttribute("value"); // how far is not known yet
    this.step.textContent = "";
    this.cells.hidden = !offersCells;
    this.choice.checked = chosen();
    const away = button(busy ? "Hide" : "Not now", "gpu-reclaim-plain", () => leave());
    const main = action ? [button(action.label, "gpu-reclaim-main", action.act)] : [];
    this.buttons.replaceChildren(away, ...main);
    if (!this.node.open) {
      this.node.showModal();
    }
    (main[0] || this.title).focus();
  }

  /** Adds what is known of the session, as [name, value] lines. */
  tellFacts(lines) {
    this.facts.replaceChildren(...terms(lines));
  }

  /** Shows how far a session is on its way back; steps are the service's. */
  progress(steps) {
    if (!steps.length || this.bar.hidden) {
      return;
    }
    this.bar.value = percent(steps);
    const words = stepText(steps.at(-1));
    if (this.step.textContent !== words) {
      this.step.textContent = words;
    }
  }

  get isOpen() {
    return this.node.open;
  }

  hide() {
    if (this.node.open) {
      this.node.close();
    }
  }
}

function chosen() {
  try {
    return localStorage.getItem(CHOICE) === "yes";
  } catch {
    return false; // no storage in this browser
  }
}

function remember(yes) {
  try {
    if (yes) {
      localStorage.setItem(CHOICE, "yes");
    } else {
      localStorage.removeItem(CHOICE);
    }
  } catch {
    // it holds for no longer than this dialog
  }
}
