/* A small notice at the lower edge of the page. It is shown when the server is away, so
 * it needs nothing from there: JupyterLab's own notices load a script when the first one
 * is shown, and that would fail just then.
 */
const STYLE = `
#gpu-reclaim-notice {
  position: fixed; left: 50%; bottom: 40px; transform: translateX(-50%); z-index: 10001;
  display: flex; align-items: center; gap: 12px; box-sizing: border-box;
  width: max-content; max-width: min(36rem, calc(100vw - 32px)); padding: 10px 14px;
  color: var(--jp-ui-font-color1, #222); background: var(--jp-layout-color1, #fff);
  font: var(--jp-ui-font-size1, 13px) / 1.4 var(--jp-ui-font-family, sans-serif);
  border: 1px solid var(--jp-border-color1, #bbb); border-left-width: 5px;
  border-radius: 3px; box-shadow: 0 3px 10px rgb(0 0 0 / 30%); overflow-wrap: anywhere;
}
#gpu-reclaim-notice[hidden] { display: none; }
#gpu-reclaim-notice.info { border-left-color: var(--jp-info-color1, #0097a7); }
#gpu-reclaim-notice.busy { border-left-color: var(--jp-brand-color1, #1976d2); }
#gpu-reclaim-notice.warning { border-left-color: var(--jp-warn-color1, #f57c00); }
#gpu-reclaim-notice.success { border-left-color: var(--jp-success-color1, #388e3c); }
#gpu-reclaim-notice button { flex: none; }
#gpu-reclaim-notice .close {
  border: 0; background: none; color: inherit; font-size: 18px; cursor: pointer;
}`;

export class Notice {
  constructor() {
    const style = document.createElement("style");
    style.textContent = STYLE;
    document.head.append(style);
    this.node = document.createElement("div");
    this.node.id = "gpu-reclaim-notice";
    this.node.setAttribute("role", "status");
    this.node.hidden = true;
    document.body.append(this.node);
    this.timer = 0;
  }

  /** Shows one message in place of the last one; `button` is {label, act}. */
  show(message, kind, { button = null, forMs = 0 } = {}) {
    clearTimeout(this.timer);
    const text = document.createElement("span");
    text.textContent = message;
    const close = this.button("×", "close", () => this.hide());
    close.setAttribute("aria-label", "Close");
    const styled = "jp-Dialog-button jp-mod-accept jp-mod-styled";
    const action = button ? [this.button(button.label, styled, button.act)] : [];
    this.node.className = kind;
    this.node.replaceChildren(text, ...action, close);
    this.node.hidden = false;
    if (forMs) {
      this.timer = setTimeout(() => this.hide(), forMs);
    }
  }

  hide() {
    this.node.hidden = true;
  }

  button(label, names, act) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = names;
    button.textContent = label;
    button.addEventListener("click", () => void act());
    return button;
  }
}
