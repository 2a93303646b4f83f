/* The calm dialog over a page whose session is away: suspended, coming back, or refused.
 *
 * Used by watch.js. The page stays below it as it is, with all its unsaved cells. It is
 * the browser's own modal dialog: the focus stays inside, Escape leaves it.
 */
import { button, element } from "./elements.js";
import { percent, stepText } from "./words.js";

export class Overlay {
  constructor() {
    this.title = element("h2", { id: "gpu-reclaim-title", tabindex: "-1" });
    this.text = element("p", { id: "gpu-reclaim-text" });
    this.bar = element("progress", { max: "100", "aria-labelledby": this.title.id });
    this.step = element("p", { class: "gpu-reclaim-step", "aria-live": "polite" });
    this.buttons = element("div", { class: "gpu-reclaim-buttons" });
    this.node = element("dialog", {
      id: "gpu-reclaim-overlay",
      "aria-labelledby": this.title.id,
      "aria-describedby": this.text.id,
    });
    this.node.append(this.title, this.text, this.bar, this.step, this.buttons);
    this.node.addEventListener("cancel", (event) => {
      event.preventDefault();
      this.leave();
    });
    document.body.append(this.node);
    this.leave = () => {};
  }

  /** Shows it; `leave` is what "Not now" and Escape do, `action` is {label, act}. */
  show({ title, text, leave, action = null, busy = false }) {
    this.leave = leave;
    this.title.textContent = title;
    this.text.textContent = text;
    this.bar.hidden = this.step.hidden = !busy;
    this.bar.removeAttribute("value"); // how far is not known yet
    this.step.textContent = "";
    const away = button(busy ? "Hide" : "Not now", "gpu-reclaim-plain", () => leave());
    const main = action ? [button(action.label, "gpu-reclaim-main", action.act)] : [];
    this.buttons.replaceChildren(away, ...main);
    if (!this.node.open) {
      this.node.showModal();
    }
    (main[0] || this.title).focus();
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
