// The Hub's own table of users and servers, as React draws it: finds its rows, keeps a
// cell of ours in each, and has the Hub read the table again. React's nodes are left
// as they are; ours are put back when they are gone.

import { Cell } from "./cell.js";

const ROOT = "react-admin-hook";
/** An address that the Hub's page shows nothing at: it draws its table again after it. */
const NOWHERE = "#/gpu-reclaim";

const soon = (milliseconds) => new Promise((wake) => setTimeout(wake, milliseconds));

export class Table {
  #cells = new WeakMap();

  /** @param drawn called after React has drawn; @param act what a button of a cell does */
  constructor(drawn, act) {
    this.act = act;
    this.root = document.getElementById(ROOT);
    this.hidden = true;
    let asked = 0;
    if (!this.root) return;
    new MutationObserver(() => {
      asked ||= requestAnimationFrame(() => {
        asked = 0;
        drawn();
      });
    }).observe(this.root, { childList: true, subtree: true, characterData: true });
  }

  /** Whether the page with the table is what the Hub shows now. */
  get isShown() {
    return /^(#\/?(\?.*)?)?$/.test(location.hash);
  }

  /** Whether it is another one than we know: no root, or rows that cannot be read. */
  get isStrange() {
    if (!this.root) return true;
    const rows = this.root.querySelectorAll("tbody > tr");
    return this.isShown && rows.length > 0 && this.rows().length === 0;
  }

  /** Rows with their session's key. */
  rows() {
    const found = [];
    for (const row of this.root?.querySelectorAll("tr.user-row") ?? []) {
      const user = row.querySelector('[data-testid^="user-name-div-"]')?.textContent;
      const server = row.querySelector('[data-testid="user-row-server"]')?.textContent;
      if (user && server !== undefined) found.push({ row, session: `${user}/${server}` });
    }
    return found;
  }

  /** Puts a cell into each row and shows in it what `of` says of the row's session. */
  show(of, now) {
    this.#header();
    for (const { row, session } of this.rows()) {
      // the Hub's own button there has a picture and no name
      const fold = row.querySelector("button[aria-controls]:not([aria-label])");
      fold?.setAttribute("aria-label", `Details of ${session}`);
      const cell = this.#cell(row);
      cell.show(session, of(session), now);
    }
  }

  /** Takes everything of ours away: the plain page. */
  clear() {
    for (const ours of this.root?.querySelectorAll(".gpu-reclaim") ?? []) ours.remove();
  }

  cell(session) {
    const found = this.rows().find((one) => one.session === session);
    return found && this.#cells.get(found.row);
  }

  /** Whether the Hub's buttons in a row tell another state than the service does. */
  contradicts(session, runs) {
    const row = this.rows().find((one) => one.session === session)?.row;
    return Boolean(row) && runs === Boolean(row.querySelector(".start-button"));
  }

  /** Whether a person works with the table in a way that must not be disturbed. */
  get isBusy() {
    const typing = document.activeElement?.matches("input, select, textarea");
    return typing || Boolean(this.root.querySelector('[aria-expanded="true"]'));
  }

  /** Has the Hub read its table again; page, search and order stand in the address. */
  async readAgain() {
    const here = location.hash || "#/";
    const focused = document.activeElement?.closest?.("td.gpu-reclaim");
    const session = focused?.dataset.session;
    const action = document.activeElement?.dataset?.action ?? "";
    const { scrollX, scrollY } = window;
    this.root.style.minHeight = `${this.root.offsetHeight}px`;
    location.replace(NOWHERE);
    for (let tries = 0; tries < 50 && this.rows().length; tries += 1) await soon(10);
    location.replace(here);
    for (let tries = 0; tries < 100 && !this.rows().length; tries += 1) await soon(10);
    this.root.style.minHeight = "";
    window.scrollTo(scrollX, scrollY);
    return () => session && this.cell(session)?.focus(action);
  }

  #header() {
    const heads = this.root.querySelector("thead > tr");
    if (!heads || heads.querySelector(".gpu-reclaim")) return;
    const head = document.createElement("th");
    head.className = "gpu-reclaim";
    head.scope = "col";
    head.textContent = "GPU session";
    heads.insertBefore(head, heads.querySelector("#actions-header"));
  }

  #cell(row) {
    let cell = this.#cells.get(row);
    if (!cell) {
      cell = new Cell(this.act);
      this.#cells.set(row, cell);
    }
    if (cell.node.parentElement !== row) {
      row.insertBefore(cell.node, row.querySelector(":scope > td.actions"));
    }
    return cell;
  }
}
