// Elements of the managers' page. Texts are always texts, never markup: names and
// sentences come from sessions.
import { inLocalTime } from "../times.js";

const SVG = "http://www.w3.org/2000/svg";
const { prefix } = document.getElementById("manager").dataset;

function made(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.filter((one) => one || one === 0));
  return node;
}

export const el = (name, attributes = {}, ...children) =>
  made(document.createElement(name), attributes, children);

export const svg = (name, attributes = {}, ...children) =>
  made(document.createElementNS(SVG, name), attributes, children);

/** Sentences of the service's, with their times in the reader's zone. */
export const told = (name, attributes, ...children) =>
  inLocalTime(el(name, attributes, ...children));

/** A reason's code. */
export const codeOf = (code) => (code ? el("code", {}, code) : "");

export const button = (label, click, more = {}) =>
  el("button", { type: "button", click, ...more }, label);

export const page = (path) => `${prefix}${path}`;

/** Names, the first few of them: "ada/, bob/lab and 3 more". */
export function several(names, most = 3) {
  const more = names.length - most;
  return names.slice(0, most).join(", ") + (more > 0 ? ` and ${more} more` : "");
}

export const count = (number, word) => `${number} ${word}${number === 1 ? "" : "s"}`;
