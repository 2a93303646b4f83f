// Keeps the page of one session up to date. The page works without it.
import { begin, calmly, fetched, follow, nowAndThen, replaced, sendForms } from "./live.js";

const { prefix, xsrf, user, only } = document.getElementById("one").dataset;

const look = calmly(async () => {
  if (document.hidden) return;
  const part = await fetched(location.pathname, xsrf);
  const fresh = part?.querySelector("#one");
  if (fresh) replaced(document.getElementById("one"), fresh);
});

begin();
sendForms(document.getElementById("main"), () => look(300));
nowAndThen(() => look(300), 60000);
const query = new URLSearchParams({ user, state: "0" });
void follow(`${prefix}api/events?${query}`, xsrf, {
  changed: (session) => session === only && look(300),
  missed: () => look(300),
});
