/* The session's state in the corner of the page; a click says more.
 *
 * Fed by updates.js while the session runs, and by absence.js while it is away; then it
 * has a button to resume it. In JupyterLab it is an item of the status bar; a page without
 * one (Notebook), or whose bar is hidden, gets it at its lower edge.
 */
import { beat, eachSecond } from "./beat.js";
import { element } from "./elements.js";
import { Panel } from "./panel.js";
import { countdown, inOneLine } from "./words.js";

const KNOWN = ["running", "napping", "warned", "suspending", "releasing"];

export class Item {
  constructor(service, statusBar, Widget) {
    this.service = service;
    this.node = element("button", {
      type: "button",
      class: "gpu-reclaim-item",
      title: "This session: its GPU, and when it is suspended",
      "aria-haspopup": "dialog",
      "aria-expanded": "false",
    });
    this.action = element("button", { type: "button", class: "gpu-reclaim-item" });
    this.panel = new Panel(service, this.node);
    this.open = () => this.panel.toggle();
    this.act = () => {};
    this.view = null; // what is shown of a session that is there
    this.absent = ""; // what is said of one that is away
    this.mark = ""; // before the tab's own title
    this.node.addEventListener("click", () => this.open());
    this.action.addEventListener("click", () => this.act());
    this.frame = element("div", { class: "gpu-reclaim-corner", role: "region" });
    this.frame.setAttribute("aria-label", "State of this session");
    this.frame.append(this.node, this.action);
    if (statusBar) {
      this.widget = new Widget({ node: element("div") });
      this.widget.node.append(this.frame);
      statusBar.registerStatusItem("jupyterhub-gpu-reclaim:state", {
        item: this.widget,
        align: "right",
        rank: 900,
      });
    }
    this.place();
    this.tell(null);
    eachSecond(() => this.draw());
  }

  /** Into the status bar, where that is shown. */
  place() {
    const bar = this.widget?.isVisible ? this.widget.node : null;
    this.frame.classList.toggle("gpu-reclaim-afloat", !bar);
    const parent = bar || document.body;
    if (this.frame.parentNode !== parent) {
      parent.append(this.frame);
    }
  }

  /** Shows what is known; nothing of an unknown session. */
  tell(view) {
    const shown = Boolean(view && KNOWN.includes(view.phase));
    this.view = shown ? view : null;
    this.absent = "";
    this.open = () => this.panel.toggle();
    this.frame.hidden = !shown;
    this.action.hidden = true;
    if (!shown) {
      this.panel.close();
      return;
    }
    this.place();
    this.node.classList.toggle("gpu-reclaim-soon", view.phase === "warned");
    beat(); // a warning counts to the same end, by the same clock
    this.panel.tell(view);
  }

  /** It counts between two answers of the service, too. */
  draw() {
    const line = this.view && inOneLine(this.view, this.service.now());
    if (line && line !== this.node.textContent) {
      this.node.textContent = line;
    }
    this.entitle();
  }

  /** Another tab is looked at, and this one's title says what comes; the page's own stays. */
  entitle() {
    const left = (this.view?.suspends_at ?? 0) - this.service.now();
    const soon = this.view?.phase === "warned" ? `Suspending in ${countdown(left)}` : "";
    const said = this.absent || soon;
    const { title } = document;
    const own = title.startsWith(this.mark) ? title.slice(this.mark.length) : title;
    this.mark = said && `${said} · `;
    if (title !== this.mark + own) {
      document.title = this.mark + own;
    }
  }

  /** Shows that the session is away, as long as it is; `open` says more. */
  tellAbsence({ corner, action }, open) {
    this.view = null;
    this.absent = corner;
    this.panel.close();
    this.place();
    this.open = open;
    this.frame.hidden = false;
    this.node.classList.add("gpu-reclaim-soon");
    this.node.textContent = corner;
    this.action.hidden = !action;
    this.action.textContent = action?.label ?? "";
    this.act = action?.act ?? (() => {});
  }
}
