// Says the times of every page in the reader's own zone.
const IN_UTC = /(\d{4}-\d\d-\d\d) (\d\d:\d\d) UTC/g; // common/text.py writes so
const WHOLE = { dateStyle: "medium", timeStyle: "long" }; // with the zone

/** Say all times of a part of the page in the reader's own zone. */
export function inLocalTime(root) {
  for (const time of root.querySelectorAll("time.whole")) // of what may be printed
    time.textContent = new Date(time.dateTime).toLocaleString([], WHOLE);
  const texts = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const { data } = texts.currentNode;
    const local = data.replace(IN_UTC, (_, day, time) => said(`${day}T${time}Z`));
    if (local !== data) texts.currentNode.data = local;
  }
  for (const button of root.querySelectorAll("button[data-seconds]")) {
    const until = new Date(Date.now() + 1000 * button.dataset.seconds);
    button.textContent = `${button.textContent.trim()}, until ${said(until)}`;
    delete button.dataset.seconds;
  }
  return root;
}

/** A moment as people say it, with its day where that is another one. */
export function said(at) {
  const when = new Date(at);
  const time = { hour: "2-digit", minute: "2-digit" };
  if (when.toDateString() === new Date().toDateString())
    return when.toLocaleTimeString([], time);
  const near = Math.abs(when - Date.now()) < 6 * 86400000;
  const day = near ? { weekday: "short" } : { dateStyle: "medium" };
  return near
    ? when.toLocaleString([], { ...day, ...time })
    : when.toLocaleString([], { ...day, timeStyle: "short" });
}

inLocalTime(document.body);
document.addEventListener("mouseover", ({ target }) => {
  if (target.localName === "time")
    target.title = new Date(target.dateTime).toLocaleString([], {
      dateStyle: "full",
      timeStyle: "long", // with the zone
    });
});
