/* A small notice at the lower edge of the page. It is shown when the server is away, so
 * it needs nothing from there: JupyterLab's own notices load a script when the first one
 * is shown, and that would fail just then.
 */
import { button, element } from "./elements.js";

export class Notice {
  constructor() {
    this.node = element("div", { id: "gpu-reclaim-notice", role: "status" });
    this.node.hidden = true;
    document.body.append(this.node);
    this.timer = this.clock = 0;
    this.topic = "";
  }

  /** Shows one message in place of the last one; `action` is {label, act}, `more` a link.
   *
   * The topic says what it is about, for `hide`. `ticking` gives the end of the message,
   * which changes each second; a screen reader does not read each of them.
   */
  show(message, kind, { topic = "", action = null, more = null, forMs = 0, ticking = null } = {}) {
    clearTimeout(this.timer);
    clearInterval(this.clock);
    this.topic = topic;
    const text = element("span", {}, message);
    if (more) {
      text.append(" ", more);
    }
    if (ticking) {
      const end = element("span", { "aria-live": "off" }, ticking());
      text.append(" ", end);
      this.clock = setInterval(() => {
        end.textContent = ticking();
      }, 1000);
    }
    const close = button("×", "gpu-reclaim-close", () => this.hide());
    close.setAttribute("aria-label", "Close");
    const main = action ? [button(action.label, "gpu-reclaim-main", action.act)] : [];
    this.node.className = kind;
    this.node.replaceChildren(text, ...main, close);
    this.node.hidden = false;
    if (forMs) {
      this.timer = setTimeout(() => this.hide(), forMs);
    }
  }

  /** Whether it is shown and about that. */
  tells(topic) {
    return !this.node.hidden && topic === this.topic;
  }

  /** Hides it; with a topic, only while it is about that. */
  hide(topic = this.topic) {
    if (topic === this.topic) {
      clearInterval(this.clock);
      this.node.hidden = true;
    }
  }
}
