// One of the page's tables: Tabulator with our columns, so that each shows the same on a
// desk, as cards on a phone, and to a keyboard or a screen reader.
//
// A column is {field, title, text, by, print, width, grow, most, wide}: `text` is what it
// says of a thing, `by` what it is sorted by, `print` how it is drawn, both the text
// where they are missing; `most` has the largest first, `wide` needs a wide screen.
import { TabulatorFull as Tabulator } from "../tabulator/tabulator_esm.min.mjs";
import { calmly } from "../live.js";
import { el } from "./dom.js";

const NARROW = matchMedia("(max-width: 48rem)");
const WIDE = matchMedia("(min-width: 96rem)");
const fits = (wide) => !wide || WIDE.matches;

const none = (value) => value === null || value === undefined || value === "";

/** Compares by a column; what has no value stays at the end, whichever way. */
function compared(a, b, dir) {
  if (none(a) || none(b)) return (none(a) - none(b)) * (dir === "asc" ? 1 : -1);
  return typeof a === "string" ? a.localeCompare(b) : a - b;
}

export class Table {
  /** `rowOf` is a thing's id; `takes` filters; `headOf` draws the head of a group. */
  constructor(place, { name, columns, idOf, sort, takes = () => true, headOf, empty }) {
    Object.assign(this, { columns, idOf, takes, headOf, sort });
    this.group = "";
    this.picked = new Set();
    this.rows = new Map();
    this.waiting = new Map();
    this.node = el("div", { "aria-label": name });
    place.append(this.node);
    this.soon = calmly(() => this.ready.then(() => this.flush()));
    this.table = new Tabulator(this.node, {
      index: "id",
      layout: "fitColumns",
      maxHeight: "80vh",
      columns: this.drawn(),
      columnDefaults: { resizable: false, headerTooltip: false },
      initialSort: this.sorters(),
      groupHeader: (value) => this.head(value),
      placeholder: el("div", { class: "empty", role: "row" }, el("div", { role: "gridcell" }, empty)),
    });
    this.ready = new Promise((done) => this.table.on("tableBuilt", done));
    this.ready.then(() => {
      const body = this.node.querySelector(".tabulator-table");
      body.role = "presentation"; // the scrolled part around it is the group of rows
      body.parentElement.role = "rowgroup";
      new MutationObserver(() => this.tick()).observe(body, { childList: true });
      this.table.setFilter(({ id }) => this.takes(this.rows.get(id).thing));
    });
    for (const query of [NARROW, WIDE]) {
      query.addEventListener("change", () => {
        this.table.setColumns(this.drawn());
        this.unusedNow();
        this.table.setSort(this.sorters());
        this.table.redraw(true);
      });
    }
  }

  // --- columns ----------------------------------------------------------------------

  drawn() {
    if (NARROW.matches) return [this.card(this.columns)];
    // What is not shown can be sorted by, as an address from a wider screen may say.
    return this.columns.map(({ field, title, by, text, width, grow, most, print, wide }) => ({
      field,
      visible: fits(wide),
      title,
      width,
      widthGrow: grow,
      minWidth: grow ? 160 : 40,
      cssClass: `of-${field}`,
      sorter: (_a, _b, one, other, _column, dir) => this.compare(field, one, other, dir),
      headerSort: Boolean(by || text) && title !== "",
      headerSortStartingDir: most ? "desc" : "asc",
      titleFormatter: () =>
        title && (by || text)
          ? el("button", { type: "button", class: "head" }, title)
          : el("span", { class: "unseen" }, field),
      formatter: (cell) => this.part(print, field, cell),
    }));
  }

  /** All columns in one, below each other: a row is a card. */
  card(columns) {
    return {
      field: "all",
      title: "All",
      headerSort: false,
      sorter: (_a, _b, one, other, _column, dir) => this.compare(this.sort.field, one, other, dir),
      formatter: (cell) => {
        const row = this.rows.get(cell.getData().id);
        const parts = columns
          .filter(({ field, wide }) => row[field] && !wide)
          .map(({ field, title, print }) =>
            el(
              "div",
              { class: `part of-${field}` },
              title && el("span", { class: "label" }, title),
              this.part(print, field, cell),
            ),
          );
        return el("div", { class: "phone" }, ...parts);
      },
    };
  }

  part(print, field, cell) {
    const row = this.rows.get(cell.getData().id);
    return print ? print(row.thing) : el("span", {}, row[field]);
  }

  compare(field, one, other, dir) {
    const [a, b] = [one, other].map((row) => this.rows.get(row.getData().id).by[field]);
    return compared(a, b, dir);
  }

  sorters() {
    const { field, dir } = this.sort;
    return [{ column: NARROW.matches ? "all" : field, dir }];
  }

  sortBy(field) {
    const { most } = this.columns.find((one) => one.field === field);
    this.sort = { field, dir: most ? "desc" : "asc" };
    this.table.setSort(this.sorters());
  }

  // --- rows -------------------------------------------------------------------------

  /** Shows these things, and no others. */
  async show(things) {
    const present = new Set(things.map(this.idOf));
    for (const id of [...this.rows.keys(), ...this.waiting.keys()]) {
      if (!present.has(id)) this.waiting.set(id, null);
    }
    for (const thing of things) this.waiting.set(this.idOf(thing), thing);
    await this.ready;
    this.flush();
  }

  /** Shows one that has changed, soon. */
  change(thing) {
    this.waiting.set(this.idOf(thing), thing);
    this.soon(400);
  }

  /** Takes in what has changed: rows whose texts are the same are not touched. */
  flush() {
    const now = Date.now() / 1000;
    const [added, updated, gone] = [[], [], []];
    let moved = false;
    for (const [id, thing] of this.waiting) {
      const old = this.rows.get(id);
      if (!thing) {
        if (old) gone.push(id);
        this.rows.delete(id);
        this.picked.delete(id);
        continue;
      }
      const row = this.row(id, thing, now);
      this.rows.set(id, row);
      if (!old) added.push(row);
      else if (old.all !== row.all) updated.push(row);
      if (old) moved ||= old.group !== row.group || this.takes(old.thing) !== this.takes(thing);
    }
    this.waiting.clear();
    const first = !this.table.getDataCount();
    const other = this.unusedNow();
    if (first) this.table.setData(added);
    else {
      if (added.length) this.table.addData(added);
      if (gone.length) this.table.deleteRow(gone);
      this.kept(() => {
        if (updated.length) this.table.updateData(updated);
        if (moved && this.group) this.groupBy(this.group);
        if (moved) this.table.refreshFilter();
      });
    }
    if (other) this.table.redraw(true);
    this.heads();
    this.told?.();
  }

  row(id, thing, now) {
    const row = { id };
    const values = {};
    for (const { field, text, by } of this.columns) {
      row[field] = text ? String(text(thing, now) ?? "") : "";
      values[field] = by ? by(thing, now) : row[field];
    }
    row.all = JSON.stringify(row);
    return { ...row, thing, by: values, group: this.group ? this.group(thing) : "" };
  }

  /** Columns that say nothing of any row leave their room to the others. */
  unusedNow() {
    const rows = [...this.rows.values()];
    let changed = false;
    for (const column of this.table.getColumns()) {
      const { field, title } = column.getDefinition();
      if (!title || !rows.length) continue;
      const { wide } = this.columns.find((one) => one.field === field) ?? {};
      const used = fits(wide) && rows.some((row) => row[field]);
      if (used === column.isVisible()) continue;
      used ? column.show() : column.hide();
      changed = true;
    }
    return changed;
  }

  /** Draws again; what has the focus keeps it, by its row and name. */
  kept(act) {
    const had = document.activeElement;
    const name = this.node.contains(had) && had.dataset.focus;
    act();
    if (!name || had.isConnected) return;
    const same = [...this.node.querySelectorAll("[data-focus]")].find((one) => one.dataset.focus === name);
    same?.focus({ preventScroll: true });
  }

  // --- filter, groups, selection -------------------------------------------------------

  filter() {
    this.ready.then(() => {
      this.table.refreshFilter();
      this.told?.();
    });
  }

  groupBy(group) {
    this.group = group;
    for (const row of this.rows.values()) row.group = group ? group(row.thing) : "";
    this.ready.then(() =>
      this.table.setGroupBy(group ? ({ id }) => this.rows.get(id).group : false),
    );
  }

  head(value) {
    return el("span", { class: "group-head", role: "gridcell", "data-group": value }, ...this.headOf(value));
  }

  heads() {
    for (const head of this.node.querySelectorAll(".group-head"))
      head.replaceChildren(...this.headOf(head.dataset.group).filter(Boolean));
  }

  /** The things that the filter takes. */
  get found() {
    return [...this.rows.values()].map((row) => row.thing).filter(this.takes);
  }

  pick(ids, on) {
    for (const id of ids) this.picked[on ? "add" : "delete"](id);
    this.tick();
    this.told?.();
  }

  get chosen() {
    return this.found.filter((thing) => this.picked.has(this.idOf(thing)));
  }

  /** A row's box; `say` is what it selects. */
  box(id, say) {
    const pick = ({ target }) => this.pick([id], target.checked);
    const box = el("input", { type: "checkbox", "data-pick": id, "data-focus": `pick ${id}`, "aria-label": `Select ${say}`, change: pick });
    box.checked = this.picked.has(id);
    return box;
  }

  /** Rows come and go as one scrolls. */
  tick() {
    for (const head of this.node.querySelectorAll(".tabulator-group")) head.role = "row";
    for (const box of this.node.querySelectorAll("[data-pick]"))
      box.checked = this.picked.has(box.dataset.pick);
  }
}
