/* A small notice at the lower edge of the page. It is shown when the server is away, so
 * it needs nothing from there: JupyterLab's own notices load a script when the first one
 * is shown, and that would fail just then.
 */
import { eachSecond } from "./beat.js";
import { button, element } from "./elements.js";

export class Notice {
  constructor() {
    this.node = element("div", { id: "gpu-reclaim-notice", role: "status" });
    this.node.hidden = true;
    document.body.append(this.node);
    this.timer = 0;
    this.still = () => {}; // ends the counting
    this.topic = "";
  }

  /** Shows one message in place of the last one; `action` is {label, act}, `more` a link.
   *
   * The topic says what it is about, for `hide`. `ticking` gives the end of the message,
   * which changes each second; a screen reader does not read each of them.
   */
  show(message, kind, { topic = "", action = null, more = null, forMs = 0, ticking = null } = {}) {
    clearTimeout(this.timer);
    this.still();
    this.topic = topic;
    const text = element("span", {}, message);
    if (more) {
      text.append(" ", more);
    }
    if (ticking) {
      const end = element("span", { "aria-live": "off" });
      text.append(" ", end);
      this.still = eachSecond(() => {
        end.textContent = ticking();
      });
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
      this.still();
      this.node.hidden = true;
    }
  }
}
