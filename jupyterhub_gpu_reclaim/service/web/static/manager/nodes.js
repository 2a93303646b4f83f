// The nodes, and what is held on their cards by whom.
import { shown } from "../dialogs.js";
import { duration, keyOf, size } from "../words.js";
import { RUNS, workOf } from "../session.js";
import { said } from "../times.js";
import { button, codeOf, count, el, page, several, svg, told } from "./dom.js";
import { order } from "./orders.js";
import { linkOf } from "./sessions.js";

const NO_ROOM = 50e6; // bytes in the store, below which not even a small session may fit
const WORKING_PERCENT = 5;

const nameOf = (node) => node || "this machine";
const pathOf = (node) => `nodes/${encodeURIComponent(node || "-")}/drain`;
let drawn = () => {}; // set by the page, to look again at once

export const onOrder = (act) => (drawn = act);

export async function undrain(node) {
  await order(pathOf(node), `Sessions can start on ${nameOf(node)} again.`, "DELETE");
  drawn();
}

/** Asks how soon a node may be gone, says who is at work there, and drains it. */
async function drain(node, views) {
  const now = Date.now() / 1000;
  const here = views.filter((one) => one.facts.node === node && RUNS.includes(one.phase));
  const busy = here.filter((one) => workOf(one, now));
  const choices = [["No hurry", ""], ["In 2 minutes", 120], ["In 10 minutes", 600], ["In an hour", 3600]];
  const soon = el("select", {}, ...choices.map(([words, value]) => el("option", { value }, words)));
  const work = busy.length
    ? ` ${busy.length} of them ${busy.length === 1 ? "is" : "are"} at work: ${several(busy.map((one) => keyOf(one.key)))}.`
    : "";
  const content = [
    el("p", {}, `${count(here.length, "session")} ${here.length === 1 ? "runs" : "run"} there.${work}`),
    el("p", {}, "They are saved and suspended, idle ones first, and resume when their users return. No session can start there until Undrain."),
    el("p", {}, el("label", {}, "When will the machine go away? ", soon)),
  ];
  if (!(await shown(`Drain ${nameOf(node)}?`, content, { yes: "Drain", no: "Cancel" }))) return;
  const seconds = soon.value ? Number(soon.value) : null;
  await order(pathOf(node), `${nameOf(node)} is being drained.`, "POST", { seconds });
  drawn();
}

/** What keeps a node from working, each with its cure; a drain is told elsewhere. */
export function faultsOf({ silent_since: since, silence, silence_detail: detail, status }) {
  if (since != null) {
    const message = silence?.message ?? "The agent does not answer.";
    const more = detail ? ` (${detail})` : "";
    return [{ ...silence, message: message.replace(/\.$/, "") + `${more}.` }];
  }
  const found = (status?.findings ?? []).filter(({ fatal, code }) => fatal || /^(store_|key_missing)/.test(code));
  if (status?.store_free != null && status.store_free < NO_ROOM)
    found.push({ code: "store_full", message: `The store is full: ${size(status.store_free)} free.`, hint: "Delete checkpoints that are not needed, or enlarge the volume." });
  return found;
}

function state(node, now) {
  if (node.silent_since != null) return [`Silent for ${duration(now - node.silent_since)}`, "bad"];
  if (node.drain) return ["Closed until undrain", "warn"];
  if (!node.status) return ["Not heard of yet", "warn"];
  return faultsOf(node).length ? ["Cannot suspend sessions", "warn"] : ["Ready", "good"];
}

const room = (where, free) => free != null && `${where} ${size(free)}`;

function notes({ findings, report, drain }) {
  const saved = report?.sessions.filter((one) => one.state === "saved").length;
  return [
    ...(drain && report ? [[`Drained since ${said(1000 * drain.since)}: ${saved} saved, ${report.sessions.length - saved} to go.`]] : []),
    ...(report?.sessions ?? []).filter((one) => one.failure).map(({ key, failure }) => [`${keyOf(key)}: ${failure.message}`, failure.code, "bad"]),
    ...findings.map(({ message, hint, code, bad }) => [`${message} ${hint ?? ""}`.trim(), code, bad && "bad"]),
  ];
}

/** Nodes as the table wants them: with their faults, drains and sessions. */
export function nodesOf({ nodes, drains, views }) {
  const reports = new Map(drains.map((one) => [one.drain.node, one]));
  return nodes.map((node) => {
    const faults = faultsOf(node);
    const known = new Set(faults.map((one) => one.code));
    const notes = (node.status?.findings ?? []).filter((one) => !known.has(one.code));
    return {
      ...node,
      findings: [...faults.map((one) => ({ ...one, bad: true })), ...notes],
      report: reports.get(node.node),
      runs: views.filter((one) => one.facts.node === node.node && RUNS.includes(one.phase)).length,
    };
  });
}

/** `views` answers all sessions. */
export const nodeColumns = (views) => [
  { field: "node", title: "Node", grow: 1, text: ({ node, status }) => `${nameOf(node)}\n${status && status.host !== node ? status.host : ""}` },
  {
    field: "state",
    title: "State",
    width: 180,
    text: (node, now) => state(node, now)[0],
    print: (node) => {
      const [words, tone] = state(node, Date.now() / 1000);
      return el("span", { class: `state ${tone}` }, words);
    },
  },
  {
    field: "versions",
    title: "Versions",
    width: 170,
    text: ({ status }) =>
      status &&
      [`agent ${status.version}`, `CRIU ${status.criu || "none that works"}`, status.driver && `GPU driver ${status.driver}`]
        .filter(Boolean)
        .join("\n"),
  },
  {
    field: "free",
    title: "Free",
    width: 190,
    text: ({ status }) => [room("disk", status?.state_free), room("store", status?.store_free)].filter(Boolean).join("\n"),
    by: ({ status }) => status?.store_free,
  },
  {
    field: "runs",
    title: "Run there",
    width: 95,
    most: true,
    text: ({ runs }) => `${runs}`,
    by: ({ runs }) => runs,
    print: ({ node, runs }) => (runs ? el("a", { href: `${page("all")}?text=${encodeURIComponent(node)}` }, runs) : el("span", {}, "0")),
  },
  {
    field: "notes",
    title: "What to know",
    grow: 3,
    text: (node) => notes(node).map(([sentence]) => sentence).join("\n"),
    print: (node) => told("div", {}, ...notes(node).map(([sentence, code, tone]) => el("p", { class: tone || "note" }, sentence, " ", codeOf(code)))),
  },
  {
    field: "acts",
    title: "",
    width: 110,
    text: ({ drain }) => (drain ? "undrain" : "drain"),
    print: ({ node, drain: under }) =>
      under
        ? button("Undrain", () => undrain(node), { "data-focus": `undrain ${node}`, "aria-label": `Undrain ${nameOf(node)}` })
        : button("Drain…", () => drain(node, views()), { "data-focus": `drain ${node}`, "aria-label": `Drain ${nameOf(node)}` }),
  },
];

// --- cards --------------------------------------------------------------------------------

const memory = (gpus, uuid) => gpus.filter((one) => one.uuid === uuid).reduce((sum, one) => sum + (one.memory ?? 0), 0);

function use(view, uuid, now) {
  const held = size(memory(view.gpus, uuid));
  const percent = view.usage?.gpu_percent;
  if (percent == null || percent >= WORKING_PERCENT) return [held, "in-use"];
  const last = view.usage.last_active;
  return [last == null ? held : `${held}, not used for ${duration(now - last)}`, "idle"];
}

/** Who holds what of a card: sessions, the largest first, those that nap, all others. */
function holders({ uuid, total, free }, views, now) {
  const on = views.filter((one) => one.gpus.some((gpu) => gpu.uuid === uuid));
  const held = on.map((view) => {
    const [about, tone] = use(view, uuid, now);
    return { view, bytes: memory(view.gpus, uuid), about, tone };
  });
  held.sort((a, b) => b.bytes - a.bytes);
  const naps = views
    .filter((one) => !on.includes(one) && one.facts.nap?.gpus.some((gpu) => gpu.uuid === uuid))
    .map((view) => ({ view, bytes: 0, tone: "napping", about: `naps, ${size(memory(view.facts.nap.gpus, uuid))} moved out` }));
  const rest = (total && free != null ? total - free : 0) - held.reduce((sum, one) => sum + one.bytes, 0);
  const others = total && rest > total / 100 ? [{ bytes: rest, tone: "others", about: `${size(rest)} used outside sessions (driver, other programs)` }] : [];
  return [...held, ...naps, ...others];
}

function bar(card) {
  let at = 0;
  const parts = card.holders.map(({ bytes, tone }) => {
    const width = card.total ? Math.min((100 * bytes) / card.total, 100 - at) : 0;
    const part = svg("rect", { class: tone, x: at, width, height: 10 });
    at += width;
    return part;
  });
  return svg("svg", { class: "memory", viewBox: "0 0 100 10", preserveAspectRatio: "none", role: "img", "aria-label": usedWords(card) }, ...parts);
}

const usedWords = ({ total, free, busy_percent: busy, divided }) =>
  [
    total && free != null && `${size(total - free)} of ${size(total)} used`,
    busy != null && `${Math.round(busy)} % busy`,
    divided && "divided (MIG)",
  ]
    .filter(Boolean)
    .join(", ") || "not known";

export function cardsOf({ nodes, views }) {
  const now = Date.now() / 1000;
  return nodes.flatMap(({ node, status }) =>
    (status?.cards ?? []).map((card) => ({ ...card, node, holders: holders(card, views, now) })),
  );
}

export const cardColumns = [
  { field: "node", title: "Node", grow: 1, text: ({ node }) => nameOf(node) },
  { field: "card", title: "GPU", grow: 1, text: ({ name, uuid }) => `${name || "GPU"} ${uuid.slice(0, 8)}` },
  {
    field: "used",
    title: "Memory",
    grow: 2,
    most: true,
    text: usedWords,
    by: ({ total, free }) => (total && free != null ? (total - free) / total : null),
    print: (card) => el("div", {}, bar(card), el("span", { class: "soft" }, usedWords(card))),
  },
  {
    field: "held",
    title: "Held by",
    grow: 3,
    text: (card) => card.holders.map(({ view, about }) => `${view ? keyOf(view.key) : ""} ${about}`).join("\n"),
    by: (card) => card.holders.length || null,
    print: (card) =>
      el("ul", { class: "holders" }, ...card.holders.map(({ view, tone, about }) => el("li", { class: tone }, view && linkOf(view), " ", el("span", { class: "soft" }, about)))),
  },
];
