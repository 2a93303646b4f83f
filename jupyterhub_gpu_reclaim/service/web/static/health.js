// Keeps the strip of the managers' pages up to date: a silent agent is told in seconds.
import { fetched, nowAndThen, replaced } from "./live.js";

const strip = () => document.getElementById("health");
const { prefix, xsrf } = strip().dataset;

nowAndThen(async () => {
  const part = await fetched(`${prefix}health`, xsrf);
  const fresh = part?.querySelector("#health");
  if (fresh) {
    fresh.dataset.xsrf = xsrf; // a fresh proof is as good, and would be a change
    replaced(strip(), fresh);
  } else if (part === null) {
    strip().replaceChildren(away());
  }
}, 5000);

function away() {
  const words = document.createElement("span");
  words.className = "state bad";
  words.textContent = "Service: no answer";
  return words;
}
