// Keeps the page of nodes up to date. It works without it.
import { fetched, nowAndThen, replaced } from "./live.js";

const { prefix, xsrf } = document.getElementById("health").dataset;

nowAndThen(async () => {
  const part = await fetched(`${prefix}nodes/list`, xsrf);
  const fresh = part?.querySelector("#nodes");
  if (fresh) replaced(document.getElementById("nodes"), fresh);
}, 5000);
