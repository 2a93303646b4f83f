// The table of all sessions: what each is at, what it holds for nothing, and why.
import { duration, keyOf, size, urlOf } from "../words.js";
import { busiest, cardsOf, detailOf, offered, RUNS, STATES, workOf, worksOnGpu } from "../session.js";
import { button, codeOf, count, el, page, several, told } from "./dom.js";
import { order, orderAll, pathOf } from "./orders.js";

const GB_HOUR = 1e6; // less than a MB·h is nothing

export const nameOf = ({ user, server }) => `${user}, ${server || "Default server"}`;
export const linkOf = ({ key }, more = {}) =>
  el(
    "a",
    { href: urlOf(page(""), keyOf(key)), "data-focus": `one ${keyOf(key)}`, ...more },
    key.user,
    " ",
    el("span", { class: "server" }, key.server || "Default server"),
  );

/** GPU memory that it holds, times how long it has not been used: byte-seconds. */
export function wasted(view, gpus = view.gpus) {
  const { usage } = view;
  if (usage?.last_active == null || !RUNS.includes(view.phase) || worksOnGpu(view)) return 0;
  const held = gpus.reduce((sum, gpu) => sum + (gpu.memory ?? 0), 0);
  return held * Math.max(0, usage.at - usage.last_active);
}

export const byteHours = (seconds) =>
  seconds / 3600 >= GB_HOUR ? `${size(seconds / 3600)}·h` : "";

/** Whether it needs attention: it cannot get back, or something else went wrong. */
export const isLost = (view) => view.phase === "suspended" && Boolean(view.failure);

function gpu(view) {
  if (view.phase === "suspended")
    return view.facts.gpus_held ? `${count(view.facts.gpus_held, "GPU")} freed` : "";
  const use = busiest(view);
  const out = view.facts.nap?.gpus.reduce((sum, one) => sum + (one.memory ?? 0), 0);
  return [
    ...cardsOf(view),
    use !== null && `${Math.round(use)} %`,
    out !== undefined && `${size(out)} moved out`,
  ]
    .filter(Boolean)
    .join("\n");
}

const due = (view) =>
  RUNS.includes(view.phase) ? (view.suspends_at ?? view.verdict?.at ?? null) : null;

function idle(view, now) {
  const at = RUNS.includes(view.phase) ? view.usage?.last_active : null;
  return at == null || workOf(view, at + 1e9) ? null : now - at;
}

/** Every sentence about it, the most important first: [sentence, code, class]. */
function reasons(view, now) {
  const { failure, verdict, facts, kept_until: kept } = view;
  const step = view.steps.at(-1);
  const live = RUNS.includes(view.phase);
  return [
    failure && [`${failure.message} ${failure.hint ?? ""}`.trim(), failure.code, "bad"],
    live && facts.nap_failure && [facts.nap_failure.message, facts.nap_failure.code, "bad"],
    live && verdict && [verdict.message, verdict.code],
    facts.place && [`Waiting for a free GPU: number ${facts.place} in the queue.`],
    live && kept > now && [`Kept running for ${duration(kept - now)} more.`],
    facts.opted_out_by && [`Never suspended when idle (set by ${facts.opted_out_by}).`],
    STATES[view.phase]?.[1] === "busy" && step && [step.title],
    !live && facts.suspension?.why && [facts.suspension.why],
  ].filter(Boolean);
}

function act(view, [kind, { label, many, done }]) {
  const click = () =>
    many ? orderAll(kind, [view], { always: false }) : order(pathOf(view.key, kind), done);
  return button(label, click, {
    class: kind === "resume" ? "main" : "plain",
    "aria-label": `${label}: ${nameOf(view.key)}`,
    "data-focus": `${kind} ${keyOf(view.key)}`,
  });
}

const stateOf = (view) => STATES[view.phase] ?? [view.phase, "calm"];

/** `box` makes the box that selects a session. */
export const columns = (box) => [
  {
    field: "pick",
    title: "",
    width: 40,
    text: keyText,
    by: () => null,
    print: (view) => box(keyOf(view.key), nameOf(view.key)),
  },
  { field: "session", title: "Session", grow: 1, text: (view) => keyOf(view.key), print: (view) => linkOf(view) },
  {
    field: "state",
    title: "State",
    width: 135,
    text: (view, now) => [stateOf(view)[0], detailOf(view, now)].filter(Boolean).join("\n"),
    print: (view) => {
      const [state, tone] = stateOf(view);
      const detail = detailOf(view, Date.now() / 1000);
      return el("span", {}, el("span", { class: `state ${tone}` }, state), " ", el("span", { class: "soft" }, detail));
    },
  },
  { field: "node", title: "Node", width: 112, text: ({ facts }) => facts.node, print: ({ facts }) => middleCut(facts.node) },
  {
    field: "gpu",
    title: "GPU",
    width: 155,
    most: true,
    text: gpu,
    by: (view) => view.gpus.length ? view.gpus.reduce((sum, one) => sum + (one.memory ?? 0), 0) : null,
  },
  {
    field: "use",
    title: "GPU use",
    width: 90,
    wide: true,
    most: true,
    text: (view) => (view.gpus.length && view.usage?.gpu_percent != null ? `${Math.round(view.usage.gpu_percent)} %` : ""),
    by: (view) => (view.gpus.length ? view.usage?.gpu_percent : null),
  },
  {
    field: "idle",
    title: "Idle for",
    width: 95,
    wide: true,
    most: true,
    text: (view, now) => (idle(view, now) === null ? "" : duration(idle(view, now))),
    by: idle,
  },
  {
    field: "wasted",
    title: "Wasted",
    width: 90,
    most: true,
    text: (view) => byteHours(wasted(view)),
    by: (view) => wasted(view) || null,
  },
  {
    field: "due",
    title: "Suspends",
    width: 98,
    text: (view, now) => (due(view) === null ? "" : due(view) > now ? `in ${duration(due(view) - now)}` : "now"),
    by: due,
  },
  {
    field: "saved",
    title: "Last saved",
    width: 150,
    wide: true,
    most: true,
    text: ({ last_suspend: last }, now) => last && `${duration(now - last.created)} ago, ${size(last.logical_bytes)}`,
    by: ({ last_suspend: last }) => last?.created,
  },
  {
    field: "why",
    title: "Reason",
    grow: 3,
    text: (view, now) => reasons(view, now).map(([sentence]) => sentence).join("\n"),
    by: (view) => view.failure?.code ?? view.verdict?.code ?? "",
    print: (view) => {
      const all = reasons(view, Date.now() / 1000);
      const parts = all.flatMap(([sentence, code, tone]) => [el("span", { class: tone }, sentence, " ", codeOf(code)), " "]);
      const title = all.map(([sentence]) => sentence).join("\n");
      return told("div", { class: "why", title }, ...parts);
    },
  },
  {
    field: "acts",
    title: "",
    width: 204,
    text: (view) => offered(view).map(([kind]) => kind).join(),
    print: (view) => el("div", { class: "acts" }, ...offered(view).map((one) => act(view, one))),
  },
];

const keyText = ({ key }) => keyOf(key);

/** Of a long name, the end is seen: the nodes of a pool differ in it. */
function middleCut(name) {
  if (name.length <= 14 || name.includes(".")) return el("span", { title: name }, name);
  return el("span", { class: "cut", title: name }, el("span", {}, name.slice(0, -6)), el("span", {}, name.slice(-6)));
}

/** Everything that is searched. */
export const textOf = (view) =>
  [
    keyOf(view.key),
    view.facts.node,
    stateOf(view)[0],
    ...view.gpus.map((one) => one.name),
    ...reasons(view, Infinity).flat(),
  ]
    .join(" ")
    .toLowerCase();

// --- groups -----------------------------------------------------------------------------

const heldOn = (view, card) =>
  view.gpus.filter((one) => one.uuid === card).reduce((sum, one) => sum + (one.memory ?? 0), 0);

/** The card of which it holds most; of equal ones the first by number. */
function mainCard(view) {
  const ids = [...new Set(view.gpus.map((one) => one.uuid))].sort();
  return ids.sort((a, b) => heldOn(view, b) - heldOn(view, a))[0] ?? "";
}

const reasonOf = (view) =>
  view.failure?.code ?? ((RUNS.includes(view.phase) && view.verdict?.code) || "no reason");

/** By what rows may be listed together: [words, group of a session, head of a group]. */
export const GROUPS = {
  card: ["card", mainCard, cardHead],
  node: ["node", ({ facts }) => facts.node || "this machine", plainHead],
  user: ["user", ({ key }) => key.user, plainHead],
  why: ["reason", reasonOf, plainHead],
};

function plainHead(value, views, group) {
  const mine = views.filter((view) => group(view) === value);
  return [value, soft(count(mine.length, "session")), soft(wastedBy(mine))];
}

const soft = (text) => text && el("span", { class: "soft" }, text);
const wastedBy = (views) => {
  const sum = byteHours(views.reduce((all, view) => all + wasted(view), 0));
  return sum && `${sum} wasted`;
};

function cardHead(id, views, _group, nodes) {
  if (!id) return ["Without a GPU"];
  const holders = views.filter((view) => view.gpus.some((one) => one.uuid === id));
  const of = (view) => view.gpus.filter((one) => one.uuid === id);
  const [one] = holders.flatMap(of);
  if (!one) return [id];
  const known = nodes.flatMap((node) => node.status?.cards ?? []).find((card) => card.uuid === one.uuid);
  const held = holders.reduce((sum, view) => sum + heldOn(view, id), 0);
  const total = known?.total ? ` of ${size(known.total)}` : "";
  const busy = known?.busy_percent == null ? "" : `, ${Math.round(known.busy_percent)} % busy`;
  const waste = byteHours(holders.reduce((sum, view) => sum + wasted(view, of(view)), 0));
  const also = holders.filter((view) => mainCard(view) !== id).map((view) => `${keyOf(view.key)} (${size(heldOn(view, id))})`);
  return [
    `${one.name || "GPU"} ${one.uuid.slice(0, 8)} on ${holders[0].facts.node || "this machine"}`,
    soft(`${size(held)}${total} held by ${count(holders.length, "session")}${busy}`),
    soft(waste && `${waste} wasted`),
    soft(also.length && `also ${several(also)}, listed below another card`),
  ];
}
