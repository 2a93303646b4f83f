// Sizes and durations as a person reads them, as words.py has them; and sessions' names.

const SIZES = ["B", "kB", "MB", "GB", "TB", "PB"];

export function size(count) {
  let value = count;
  let unit = 0;
  while (Math.abs(value) >= 999.5 && unit < SIZES.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${value.toFixed(unit && Math.abs(value) < 9.95 ? 1 : 0)} ${SIZES[unit]}`;
}

export function duration(seconds) {
  const total = Math.max(0, Math.round(seconds));
  if (total < 60) return `${total} s`;
  const minutes = Math.round(total / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${minutes % 60} min`.replace(" 0 min", "");
  return `${Math.floor(hours / 24)} d ${hours % 24} h`.replace(" 0 h", "");
}

export const keyOf = ({ user, server }) => `${user}/${server ?? ""}`;

export const nameOf = ({ user, server }) => (server ? `${user}/${server}` : user);

/** The URL of a session's pages below a prefix, of its key "user/server". */
export const urlOf = (prefix, session) => {
  // user names may hold no slash, server names neither; "-" is the default server,
  // and a name of dashes gets one more (models.SessionKey.path)
  const cut = session.indexOf("/");
  const server = session.slice(cut + 1).replace(/^-*$/, "$&-");
  return `${prefix}sessions/${encodeURIComponent(session.slice(0, cut))}/${encodeURIComponent(server)}`;
};

/** Until when, on this browser's clock. */
export const clock = (seconds) =>
  new Date(seconds * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
