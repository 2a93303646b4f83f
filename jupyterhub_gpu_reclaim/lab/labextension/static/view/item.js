/* The session's state in the corner of the page; a click opens the panel.
 *
 * Fed by updates.js. In JupyterLab it is an item of the status bar; a page without one
 * (Notebook) gets it at its lower edge.
 */
import { element } from "./elements.js";
import { Panel } from "./panel.js";
import { inOneLine } from "./words.js";

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
    this.panel = new Panel(service, this.node);
    this.node.addEventListener("click", () => this.panel.toggle());
    const frame = element("div", { class: "gpu-reclaim-corner", role: "region" });
    frame.setAttribute("aria-label", "State of this session");
    frame.append(this.node);
    if (statusBar) {
      const item = new Widget({ node: frame });
      statusBar.registerStatusItem("jupyterhub-gpu-reclaim:state", {
        item,
        align: "right",
        rank: 900,
      });
    } else {
      frame.classList.add("gpu-reclaim-afloat");
      document.body.append(frame);
    }
    this.tell(null);
  }

  /** Shows what is known; nothing of a session that nobody knows about. */
  tell(view) {
    const known = view && ["running", "napping", "warned", "suspending", "releasing"];
    const shown = Boolean(known?.includes(view.phase));
    this.node.hidden = !shown;
    if (!shown) {
      this.panel.close();
      return;
    }
    this.node.classList.toggle("gpu-reclaim-soon", view.phase === "warned");
    this.node.textContent = inOneLine(view, this.service.now());
    this.panel.tell(view);
  }
}
