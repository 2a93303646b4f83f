// The Hub's admin page with each server's state, and a button to suspend or resume it. The
// state leads to the session's page. hub/templates/admin.html loads this; where the service
// is away, or the page is another one than we know, it says so in one line and leaves the
// Hub's page as it is.
import { ORDERS } from "./orders.js";
import { offered, STATES, STOPS, workOf } from "./session.js";
import { keyOf, nameOf, urlOf } from "./words.js";

const EVERY_MS = 3000; // between two looks
const AGAIN_MS = 10000; // where the last one failed
const TOKEN_SECONDS = 600;
const RENEW_MS = 480000; // before it ends

const place = document.getElementById("gpu-reclaim-panel");
const { service, scope, hub, user } = place.dataset;
const note = place.querySelector("[data-note]");
const root = document.getElementById("react-admin-hook");
let views = new Map(); // session -> what the service says of it

// --- the service, asked with a token of a few minutes for it alone, which is handed back

const tokens = `${hub}api/users/${encodeURIComponent(user)}/tokens`;
const headers = { "Content-Type": "application/json", "X-XSRFToken": window.jhdata.xsrf_token };
let token = null;
let renewed = 0;

async function made() {
  const body = JSON.stringify({
    note: "gpu-reclaim: this admin page",
    expires_in: TOKEN_SECONDS,
    scopes: ["access:services!service=gpu-reclaim", scope],
  });
  const answer = await fetch(tokens, { method: "POST", headers, body });
  if (!answer.ok) throw new Error(`JupyterHub gives this page no token (${answer.status})`);
  return answer.json();
}

function handBack() {
  const options = { method: "DELETE", headers, keepalive: true }; // while the page goes away
  token?.then(({ id }) => fetch(`${tokens}/${encodeURIComponent(id)}`, options)).catch(() => {});
  token = null;
}

async function ask(path, method = "GET") {
  if (Date.now() > renewed + RENEW_MS) handBack();
  if (!token) renewed = Date.now();
  token ??= made();
  const { token: value } = await token;
  const answer = await fetch(`${service}api/${path}`, {
    method,
    headers: { Authorization: `token ${value}` },
    credentials: "omit",
    signal: AbortSignal.timeout(20000),
  });
  const told = await answer.json().catch(() => ({}));
  if (answer.ok) return told;
  throw new Error(told.message ?? "the service does not answer");
}

// --- the Hub's own table, as React draws it; its nodes are left as they are

function rows() {
  const found = [];
  for (const row of root?.querySelectorAll("tr.user-row") ?? []) {
    const name = row.querySelector('[data-testid^="user-name-div-"]')?.textContent;
    const server = row.querySelector('[data-testid="user-row-server"]')?.textContent;
    if (name && server !== undefined) found.push({ row, session: keyOf({ user: name, server }) });
  }
  return found;
}

function draw() {
  const heads = root?.querySelector("thead > tr");
  if (heads && views.size && !heads.querySelector(".gpu-reclaim")) {
    const head = document.createElement("th");
    head.className = "gpu-reclaim";
    head.scope = "col";
    head.textContent = "GPU session";
    heads.insertBefore(head, heads.querySelector("#actions-header"));
  }
  for (const { row, session } of views.size ? rows() : []) {
    let cell = row.querySelector("td.gpu-reclaim");
    if (!cell) {
      cell = document.createElement("td");
      cell.className = "gpu-reclaim";
      row.insertBefore(cell, row.querySelector(":scope > td.actions"));
    }
    show(cell, session, views.get(session));
  }
}

/** What stays the same is not touched, so that a click or the focus is never lost. */
function show(cell, session, view) {
  const orders = view ? offered(view).filter(([kind]) => kind in { suspend: 0, resume: 0 }) : [];
  const shown = JSON.stringify([session, view?.phase, orders.map(([kind]) => kind)]);
  if (cell.dataset.shown === shown) return;
  const focused = cell.contains(document.activeElement);
  Object.assign(cell.dataset, { session, shown });
  cell.replaceChildren();
  if (!view) return;
  const [state, tone] = STATES[view.phase] ?? [view.phase, "calm"];
  const link = document.createElement("a");
  link.className = `badge ${tone}`;
  link.href = urlOf(service, session);
  link.textContent = state;
  cell.append(link);
  for (const [kind, { label, stops }] of orders) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = `btn btn-sm ${stops ? "btn-warning" : "btn-success"}`;
    button.textContent = label;
    button.ariaLabel = `${label}: ${nameOf(view.key)}`;
    button.onclick = () => give(kind, session);
    cell.append(" ", button);
  }
  if (focused) cell.querySelector("button, a").focus({ preventScroll: true });
}

function say(words) {
  note.hidden = !words;
  note.querySelector("[data-words]").textContent = words;
}

/** Whether the Hub's table is another one than we know: rows that cannot be read. */
function isStrange() {
  const isTable = /^(#\/?(\?.*)?)?$/.test(location.hash);
  return !root || (isTable && root.querySelector("tbody > tr") && !rows().length);
}

async function look() {
  let wait = EVERY_MS;
  try {
    if (isStrange()) throw new Error("this version of JupyterHub's admin page is not known");
    const named = rows().map((one) => ["session", one.session]);
    if (named.length && !document.hidden) {
      const told = await ask(`sessions?${new URLSearchParams(named)}`);
      views = new Map(told.map((view) => [keyOf(view.key), view]));
      say("");
      draw();
    }
  } catch (error) {
    for (const ours of root?.querySelectorAll(".gpu-reclaim") ?? []) ours.remove();
    views = new Map();
    say(`GPU states and buttons are not shown: ${error.message}.`);
    handBack();
    wait = AGAIN_MS;
  }
  setTimeout(look, wait);
}

async function give(kind, session) {
  const view = views.get(session);
  const { label, stops } = ORDERS[kind];
  const work = stops && workOf(view, Date.now() / 1000);
  if (work && !confirm(`${label}: ${nameOf(view.key)}? ${work} ${STOPS}`)) return;
  try {
    views.set(session, await ask(urlOf("", session) + `/${kind}`, "POST"));
  } catch (error) {
    alert(error.message);
  }
  draw();
}

/** The Hub's "Delete Server" deletes its checkpoints, too: that is asked first. */
function guard(event) {
  const button = event.target.closest?.("button.stop-button");
  const row = rows().find((one) => one.row.contains(button));
  if (button?.textContent !== "Delete Server") return;
  if (views.get(row?.session)?.phase !== "suspended") return;
  const lost = "Its session is suspended. With the server it is deleted for good.";
  if (!confirm(`Delete ${row.session}? ${lost}`)) event.stopPropagation();
}

document.addEventListener("click", guard, true);
addEventListener("pagehide", handBack);
if (root) {
  const all = { childList: true, subtree: true, characterData: true };
  new MutationObserver(draw).observe(root, all);
}
look();
