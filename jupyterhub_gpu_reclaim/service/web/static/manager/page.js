// The managers' page: all sessions, the nodes or the store, as its address says, with
// what needs attention above. It reads the API, and follows its stream of changes.
import { keyOf } from "../words.js";
import { ask as get, calmly, fetched, follow, nowAndThen, replaced } from "../live.js";
import { ORDERS } from "../orders.js";
import { RUNS, STATES } from "../session.js";
import { attention } from "./attention.js";
import { button, count, el, page } from "./dom.js";
import { cardColumns, cardsOf, nodeColumns, nodesOf, onOrder } from "./nodes.js";
import { orderAll, read } from "./orders.js";
import { columns as sessionColumns, GROUPS, isLost, textOf } from "./sessions.js";
import * as store from "./store.js";
import { Table } from "./table.js";

const { prefix, xsrf, view } = document.getElementById("manager").dataset;
const place = document.getElementById("view");
const known = { views: new Map(), nodes: [], drains: [], away: false };
const all = () => ({ ...known, views: [...known.views.values()] });
const wanted = Object.fromEntries(new URLSearchParams(location.search));

/** What rows may be asked for, beside the phases themselves. */
const KINDS = {
  lost: ["cannot get back", isLost],
  failed: ["with a failure", (one) => Boolean(one.failure) && !isLost(one)],
  waiting: ["waiting for a GPU", (one) => Boolean(one.facts.place)],
};
const takesState = (one, state) => !state || (KINDS[state] ? KINDS[state][1](one) : one.phase === state);

/** The address says what is shown, so it can be kept and shared. */
function want(changes) {
  Object.assign(wanted, changes);
  const here = new URL(location.href);
  here.search = new URLSearchParams(Object.entries(wanted).filter(([, value]) => value));
  history.replaceState(null, "", here);
}

const select = (label, choices, value, change) =>
  el(
    "label",
    {},
    label,
    el("select", { change: ({ target }) => change(target.value) }, ...choices.map(([name, words]) => el("option", { value: name, selected: name === value && "" }, words))),
  );

/** Search, groups, order, and what is done with what is selected. */
function toolbar(table, { nouns, groups, group, orders, columns }) {
  const words = () => (wanted.text ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  const search = el("input", { type: "search", maxlength: 100, "aria-label": "Search", placeholder: "Search: user, server, node, GPU, reason, code" });
  search.value = wanted.text ?? "";
  search.addEventListener("input", () => {
    want({ text: search.value.trim() });
    table.filter();
  });
  const every = el("input", { type: "checkbox", "aria-label": "Select all that are listed", disabled: "", change: () => table.pick(table.found.map(table.idOf), every.checked) });
  const said = el("span", { role: "status" });
  const buttons = orders.map(([label, act]) => button(label, async () => (await act(table.chosen)) && table.pick([...table.picked], false), { disabled: "" }));
  const sorts = columns.filter(({ title }) => title).map(({ field, title }) => [field, title]);
  const bar = el(
    "div",
    { class: "tools" },
    search,
    groups && select("Group by", [["", "nothing"], ...groups], wanted.by, group),
    el("span", { class: "sorts" }, select("Sort by", sorts, table.sort.field, (field) => table.sortBy(field))),
  );
  const bulk = el("div", { class: "bulk", role: "group", "aria-label": "Selected" }, el("label", {}, every, said), ...buttons);
  table.told = () => {
    const [found, chosen] = [table.found, table.chosen];
    const of = found.length < table.rows.size ? ` of ${table.rows.size}` : "";
    said.textContent = chosen.length ? `${chosen.length} of ${found.length} selected` : `${count(found.length, nouns)}${of}`;
    every.disabled = !found.length;
    every.checked = chosen.length > 0 && chosen.length === found.length;
    every.indeterminate = chosen.length > 0 && !every.checked;
    for (const one of buttons) one.disabled = !chosen.length;
  };
  return { nodes: [bar, bulk], words, search };
}

// --- the views --------------------------------------------------------------------------

function sessions() {
  const chips = el("div", { class: "chips", role: "group", "aria-label": "Sessions by state" });
  const holder = el("div", { id: "sessions" });
  let words = () => [];
  const texts = new WeakMap();
  const text = (one) => texts.get(one) ?? texts.set(one, textOf(one)).get(one);
  const columns = sessionColumns((...one) => table.box(...one));
  const sort = columns.some(({ field }) => field === wanted.sort) ? wanted.sort : "wasted";
  const { most } = columns.find(({ field }) => field === sort);
  const dir = wanted.dir === "asc" || wanted.dir === "desc" ? wanted.dir : most ? "desc" : "asc";
  const table = new Table(holder, {
    name: "Sessions",
    columns,
    idOf: ({ key }) => keyOf(key),
    sort: { field: sort, dir },
    takes: (one) => takesState(one, wanted.state) && words().every((word) => text(one).includes(word)),
    headOf: (value) => GROUPS[wanted.by][2](value, all().views, GROUPS[wanted.by][1], known.nodes),
    empty: "No session matches.",
  });
  const group = (by) => {
    want({ by });
    table.groupBy(GROUPS[by]?.[1] ?? null);
  };
  const orders = Object.entries(ORDERS)
    .filter(([, { many }]) => many)
    .map(([kind, { label }]) => [label, (views) => orderAll(kind, views)]);
  const groups = Object.entries(GROUPS).map(([name, [title]]) => [name, title]);
  const tools = toolbar(table, { nouns: "session", groups, group, orders, columns });
  words = tools.words;
  table.table.on("dataSorted", ([sorter]) => sorter && sorter.field !== "all" && want({ sort: sorter.field, dir: sorter.dir }));
  place.append(chips, ...tools.nodes, holder);
  if (GROUPS[wanted.by]) group(wanted.by);

  const look = (state, code) => {
    tools.search.value = code;
    want({ state, text: code });
    table.filter();
    draw();
  };
  let drawnChips = "";
  const draw = () => {
    const { views } = all();
    const kinds = [
      ["", "all", () => true],
      ...Object.entries(KINDS).map(([name, [title, takes]]) => [name, title, takes]),
      ...Object.entries(STATES).map(([name, [title]]) => [name, title.toLowerCase(), (one) => one.phase === name]),
    ];
    const counted = kinds.map(([name, title, takes]) => [name, title, views.filter(takes).length]);
    const shown = counted.filter(([name, , many]) => many || !name || name === wanted.state);
    const now = JSON.stringify([shown, wanted.state]);
    if (now === drawnChips) return;
    drawnChips = now;
    const had = chips.contains(document.activeElement) && document.activeElement.dataset.state;
    chips.replaceChildren(
      ...shown.map(([name, title, many]) => {
        const choose = () => {
          want({ state: name });
          table.filter();
          draw();
        };
        return el("button", { type: "button", click: choose, "data-state": name, "aria-pressed": `${name === (wanted.state ?? "")}`, class: name === "lost" ? "bad" : "" }, el("strong", {}, many), ` ${title}`);
      }),
    );
    if (had !== false) chips.querySelector(`[data-state="${had}"]`)?.focus();
  };
  return {
    look,
    show: () => table.show(all().views).then(draw),
    change: (one) => {
      table.change(one);
      draw();
    },
  };
}

function nodes() {
  const [above, below] = [el("div", { id: "nodes" }), el("div", { id: "cards" })];
  const machines = new Table(above, { name: "Nodes", columns: nodeColumns(() => all().views), idOf: ({ node }) => node || "-", sort: { field: "node", dir: "asc" }, empty: "No agent has answered yet." });
  const cards = new Table(below, { name: "GPUs", columns: cardColumns, idOf: ({ uuid }) => uuid, sort: { field: "node", dir: "asc" }, empty: "No GPU." });
  place.append(above, el("h2", {}, "GPUs"), below);
  const show = () => Promise.all([machines.show(nodesOf(all())), cards.show(cardsOf(all()))]);
  return { show, change: calmlyShown(show) };
}

function checkpoints() {
  const holder = el("div", { id: "store" });
  let words = () => [];
  const columns = store.columns((...one) => table.box(...one));
  const table = new Table(holder, {
    name: "Checkpoints",
    columns,
    idOf: store.idOf,
    sort: { field: "stored", dir: "desc" },
    takes: (one) => words().every((word) => `${keyOf(one.key)} ${one.name}`.toLowerCase().includes(word)),
    headOf: (user) => store.headOf(user, store.stored(all().views)),
    empty: "There are no checkpoints.",
  });
  const group = (by) => {
    want({ by });
    table.groupBy(by === "user" ? store.byUser : null);
  };
  const tools = toolbar(table, { nouns: "checkpoint", groups: [["user", "user"]], group, orders: [["Delete…", store.deleteAll]], columns });
  words = tools.words;
  place.append(...tools.nodes, holder);
  if (wanted.by === "user") group("user");
  const show = () => table.show(store.stored(all().views));
  return { show, change: calmlyShown(show) };
}

const calmlyShown = (show) => {
  const soon = calmly(show);
  return () => soon(2000);
};

// --- the life of the page -----------------------------------------------------------------

const shown = { all: sessions, nodes, store: checkpoints }[view]();
const look = shown.look ?? ((state, text) => location.assign(`${page("all")}?${new URLSearchParams({ state, text })}`));
const above = () => attention(document.getElementById("attention"), { ...all(), look });
const aboveSoon = calmly(above);
let took = 0; // milliseconds, the last time

async function readAll() {
  if (document.hidden) return;
  const began = performance.now();
  try {
    const views = await read("sessions");
    known.views = new Map(views.map((one) => [keyOf(one.key), one]));
    took = performance.now() - began;
    await shown.show();
    above();
    place.removeAttribute("aria-busy");
  } catch {
    // the service is away; its nodes are asked for again, and its stream says when it is back
  }
}
const readSoon = calmly(readAll);

async function readNodes() {
  try {
    [known.nodes, known.drains] = await Promise.all([read("nodes"), read("drains")]);
    known.away = false;
    if (view === "nodes") shown.show();
  } catch {
    known.away = true;
  }
  above();
}

async function totals() {
  const part = await fetched(location.pathname, xsrf);
  for (const id of ["troubles", "summary"]) {
    const fresh = part?.querySelector(`#${id}`);
    if (fresh) replaced(document.getElementById(id), fresh);
  }
}

onOrder(readNodes);
void readNodes();
readSoon(150); // together with the stream's word that it is open
nowAndThen(readNodes, 5000);
nowAndThen(() => {
  readSoon(100 * took); // where an answer takes long, it is asked less
  totals();
}, 60000);
void follow(`${prefix}api/events?state=0`, xsrf, {
  changed: (_session, one) => {
    known.views.set(keyOf(one.key), one);
    shown.change(one);
    aboveSoon(1000);
  },
  missed: () => readSoon(150),
});
