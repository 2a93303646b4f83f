// Keeps the managers' page up to date, and filters, sorts and turns its pages without
// a reload. The page works without it.
import {
  begin,
  calmly,
  fetched,
  follow,
  nowAndThen,
  replaced,
  sendForms,
  sentForm,
} from "./live.js";

const overview = document.getElementById("overview");
const filter = document.getElementById("filter");
const { prefix, xsrf } = overview.dataset;
const bySession = (root) =>
  new Map(
    [...root.querySelectorAll("tr[data-session]")].map((row) => [row.dataset.session, row]),
  );
const byGroup = (root) =>
  new Map([...root.querySelectorAll("tr[data-group]")].map((row) => [row.dataset.group, row]));
/** What stands in the table, from its top to its end. */
const order = (root) =>
  [...root.querySelectorAll("tbody tr")]
    .map((row) => row.dataset.session ?? row.dataset.group)
    .join("\n");

const picks = (root) => [...root.querySelectorAll('input[name="session"]')];

/** What was selected stays so, also where its row is a new one. */
function keepPicks(old, fresh) {
  const picked = new Set(picks(old).filter((one) => one.checked).map((one) => one.value));
  for (const one of picks(fresh)) one.checked = picked.has(one.value);
}

/** Rows that are there stay where they are, so that nothing jumps under a pointer. */
function takeTable(fresh) {
  const old = document.getElementById("sessions");
  const before = order(old);
  keepPicks(old, fresh);
  if (before !== order(fresh) || !before) {
    replaced(old, fresh);
    return;
  }
  for (const rows of [bySession, byGroup]) {
    const present = rows(fresh);
    for (const [name, row] of rows(old)) replaced(row, present.get(name));
  }
  for (const part of [".count", "thead", ".pages"]) {
    const [was, is] = [old.querySelector(part), fresh.querySelector(part)];
    if (was && is) replaced(was, is);
  }
}

let asked = 0; // the answer to an older question is left out
let took = 0; // milliseconds, the last time

const table = calmly(async () => {
  if (document.hidden) return;
  const mine = ++asked;
  const began = performance.now();
  const part = await fetched(`${prefix}all/table${location.search}`, xsrf);
  took = performance.now() - began;
  const fresh = part?.querySelector("#sessions");
  if (fresh && mine === asked) takeTable(fresh);
});

const summary = calmly(async () => {
  if (document.hidden) return;
  const part = await fetched(`${prefix}all/summary${location.search}`, xsrf);
  const fresh = part?.querySelector("#summary");
  if (fresh) replaced(document.getElementById("summary"), fresh);
});

/** Another filter, order or page: the address says it, so it can be kept and shared. */
function go(changes) {
  const here = new URL(location.href);
  here.search = "";
  for (const [name, value] of changes) if (value) here.searchParams.set(name, value);
  history.replaceState(null, "", here);
}

function fromFilter() {
  go([...new FormData(filter)]);
  table(250);
}

filter.classList.add("lively");
filter.addEventListener("input", fromFilter);
filter.addEventListener("submit", (event) => {
  event.preventDefault();
  fromFilter();
});

overview.addEventListener("click", (event) => {
  const link = event.target.closest("a");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  if (!("state" in link.dataset || "table" in link.dataset)) return;
  const wanted = new URL(link.href).searchParams;
  go([...wanted]);
  for (const field of filter.elements) {
    if (field.name) field.value = wanted.get(field.name) ?? (field.name === "sort" ? "wasted" : "");
  }
  table(0);
  event.preventDefault();
});

// one menu at a time, and none when the person goes elsewhere
document.addEventListener("click", (event) => {
  for (const open of overview.querySelectorAll("details.more[open]")) {
    if (!open.contains(event.target)) open.open = false;
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  const open = document.activeElement.closest("details.more[open]");
  if (!open) return;
  open.open = false;
  open.querySelector("summary").focus();
});

// orders for many sessions: how many are selected, and what has become of them
const bulk = document.getElementById("bulk");
function count() {
  const many = bulk.elements.all.checked
    ? "all that are filtered"
    : picks(document).filter((one) => one.checked).length;
  document.getElementById("selected").textContent = many ? `: ${many}` : "";
}
document.addEventListener("change", count);
bulk.addEventListener("submit", async (event) => {
  event.preventDefault();
  const fields = new FormData(bulk, event.submitter);
  fields.set("query", location.search.slice(1));
  bulk.querySelector("details").open = false;
  if (await sentForm(bulk, fields)) {
    for (const one of picks(document)) one.checked = false;
    bulk.elements.all.checked = false;
    count();
  }
  table(200);
  summary(1000);
});

begin();
sendForms(overview, () => {
  table(200);
  summary(1000);
});
nowAndThen(() => {
  table(0);
  summary(0);
}, 60000);
void follow(`${prefix}api/events?state=0`, xsrf, {
  // a row that is shown soon; what else has changed may move rows, but not all the time;
  // and where there are so many sessions that an answer takes long, it is asked less
  changed: (session) => {
    const soon = bySession(overview).has(session) ? 500 : 10000;
    table(Math.max(soon, 10 * took));
    summary(Math.max(30000, 10 * took));
  },
  missed: () => {
    table(0);
    summary(0);
  },
});
