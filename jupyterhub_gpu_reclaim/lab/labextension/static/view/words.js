/* What a tab says of its session, in words: pure, so that a test needs no page.
 *
 * A view is the service's SessionView; all times are seconds of the service's clock.
 */
const WORKING_PERCENT = 5; // of a GPU that is at work, as totals.py has it
const UNITS = ["B", "kB", "MB", "GB", "TB"];

/** Bytes in decimal units: "1.5 GB". */
export function size(bytes) {
  let value = bytes;
  let unit = 0;
  while (value >= 999.5 && unit < UNITS.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${value.toFixed(unit && value < 9.95 ? 1 : 0)} ${UNITS[unit]}`;
}

/** Seconds in whole minutes and hours: "1 h 5 min". */
export function duration(seconds) {
  const minutes = Math.round(seconds / 60);
  if (minutes < 1) {
    return "less than a minute";
  }
  const [hours, rest] = [Math.floor(minutes / 60), minutes % 60];
  return [hours && `${hours} h`, rest && `${rest} min`].filter(Boolean).join(" ");
}

/** A moment as a time of day, with the day where it is not today. */
export function clockTime(at) {
  const when = new Date(1000 * at);
  if (when.toDateString() === new Date().toDateString()) {
    return when.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  }
  return Math.abs(when - Date.now()) < 6 * 86400000
    ? when.toLocaleString([], { weekday: "short", hour: "2-digit", minute: "2-digit" })
    : when.toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
}

/** A sentence of the service's, with its times in the reader's zone. */
export function inLocalTime(sentence) {
  // common/text.py writes so
  return sentence.replace(/(\d{4}-\d\d-\d\d) (\d\d:\d\d) UTC/g, (_, day, time) =>
    clockTime(Date.parse(`${day}T${time}Z`) / 1000)
  );
}

/** Seconds for which a session may be offered to be kept, of those allowed now. */
export function keepChoices(longest) {
  const whole = [1, 4].map((hours) => 3600 * hours);
  const allowed = whole.filter((seconds) => seconds <= longest + 1);
  const minutes = Math.floor(longest / 60);
  return allowed.length || minutes < 5 ? allowed : [60 * minutes];
}

/** What a choice means: "Keep 1 h, until 14:10". */
export function keepLabel(seconds, now) {
  return `Keep ${duration(seconds)}, until ${clockTime(now + seconds)}`;
}

/** Seconds that are left of a warning: "48 s", "2 min". */
export function countdown(seconds) {
  return seconds < 100 ? `${Math.max(0, Math.round(seconds))} s` : duration(seconds);
}

/** When a session that runs is going to be suspended, as far as that is known. */
export function dueAt(view) {
  return view.suspends_at ?? view.verdict?.at ?? null;
}

/** What it computes, even if untouched for long; "" for nothing. */
export function workOf({ usage, gpus }) {
  if (usage?.busy_kernel) {
    return `Kernel ${usage.busy_kernel} is busy.`;
  }
  const percents = [usage?.gpu_percent, ...(gpus ?? []).map((one) => one.sm_percent)];
  return percents.some((one) => one >= WORKING_PERCENT) ? "Its GPU is busy." : "";
}

/** Seconds since it was last used, null where it is in use or that is not known. */
export function idleFor(view, now) {
  const last = view.usage?.last_active;
  return workOf(view) || last == null || now - last < 60 ? null : now - last;
}

/** Memory and use of all its cards: {memory, percent}, null where it has none. */
export function gpuOf(view) {
  const cards = view.gpus || [];
  if (!cards.length) {
    return null;
  }
  const known = cards.map((card) => card.sm_percent).filter((one) => one != null);
  return {
    names: [...new Set(cards.map((card) => card.name).filter(Boolean))].join(", "),
    memory: cards.reduce((sum, card) => sum + (card.memory || 0), 0),
    percent: known.length ? Math.round(Math.max(...known)) : null,
  };
}

/** What a nap has moved out of the GPU, in bytes; null while the session is awake. */
function movedOut(view) {
  const gpus = view.facts?.nap?.gpus;
  return gpus ? gpus.reduce((sum, gpu) => sum + (gpu.memory || 0), 0) : null;
}

/** What a session that is woken waits for; empty where it is not woken. */
export function waking(view, now) {
  const facts = view.facts || {};
  if (movedOut(view) === null) {
    return "";
  }
  if (facts.place) {
    return `waiting for a GPU, number ${facts.place} in the queue`;
  }
  if (!facts.waking_until) {
    return "";
  }
  const left = Math.ceil(facts.waking_until - now);
  return `getting your GPU memory back${left > 0 ? `, ${left} s` : ""}`;
}

/** One line for the corner: "GPU 12 GB, 0 % · idle 5 min · suspends in 10 min". */
export function inOneLine(view, now) {
  if (["suspending", "releasing"].includes(view.phase)) {
    return "Suspending session";
  }
  const gpu = gpuOf(view);
  const idle = idleFor(view, now);
  const due = dueAt(view);
  const kept = view.kept_until > now;
  const parts = [];
  const moved = movedOut(view);
  const wakes = waking(view, now);
  if (wakes) {
    parts.push(wakes);
  } else if (moved !== null) {
    parts.push(`GPU naps, ${size(moved)} moved out`);
  } else if (gpu) {
    const use = gpu.percent === null ? "" : `, ${gpu.percent} %`;
    parts.push(`GPU ${size(gpu.memory)}${use}`);
  }
  if (idle !== null) {
    parts.push(`idle ${duration(idle)}`);
  }
  if (kept) {
    parts.push(`kept until ${clockTime(view.kept_until)}`);
  } else if (due > now && (idle !== null || view.phase === "warned")) {
    parts.push(`suspends in ${countdown(due - now)}`);
  }
  const line = parts.join(" · ") || "Session in use";
  return line[0].toUpperCase() + line.slice(1);
}

/** The same at length, as [name, value] lines. */
export function inFull(view, now) {
  const gpu = gpuOf(view);
  const due = dueAt(view);
  const lines = [];
  const moved = movedOut(view);
  const wakes = waking(view, now);
  if (wakes) {
    lines.push(["GPU memory", `${size(moved)}: ${wakes}`]);
  } else if (moved !== null) {
    lines.push(["GPU memory", `${size(moved)} moved out; running a cell brings it back`]);
  } else if (gpu) {
    lines.push(["GPU", gpu.names || "yes"], ["GPU memory", size(gpu.memory)]);
    if (gpu.percent !== null) {
      lines.push(["GPU in use", `${gpu.percent} %`]);
    }
  }
  const last = view.usage?.last_active;
  if (last != null) {
    lines.push(["Last used", now - last < 60 ? "just now" : `${duration(now - last)} ago`]);
  }
  if (view.kept_until > now) {
    lines.push(["Kept until", clockTime(view.kept_until)]);
  } else if (due > now) {
    const least = view.phase === "warned" ? ", unless you use it" : " at the earliest";
    lines.push(["Suspends at", `${clockTime(due)}${least}`]);
  }
  return lines;
}

/** What is known of a suspended session, as [name, value] lines. */
export function absentInFull(view, now) {
  const known = view.facts?.suspension || {};
  const { at = view.since, why, bytes } = known;
  const lines = [["Since", `${clockTime(at)} (${duration(now - at)} ago)`]];
  if (why) {
    lines.unshift(["Why", inLocalTime(why)]);
  }
  if (bytes) {
    lines.push(["Size", size(bytes)]);
  }
  lines.push(["Kept until", keptUntil(known)]);
  return lines;
}

function keptUntil({ until, for_quota: quota }) {
  const end = until ? clockTime(until) : "you resume or delete it";
  return quota ? `${end}, or until a quota takes it` : end;
}

/** How far a return is, of 100: no one knows how many steps are to come. */
export function percent(steps) {
  let done = 2;
  for (const step of steps) {
    const part = step.total_bytes ? Math.min(1, step.bytes / step.total_bytes) : 0;
    done += (92 - done) * 0.25 * (step.state === "done" ? 1 : part);
  }
  return Math.round(done);
}

/** One step in words: "Reading the memory: 1.2 GB of 4.0 GB". */
export function stepText({ title, bytes = 0, total_bytes: total = 0 }) {
  if (!bytes) {
    return title;
  }
  return `${title}: ${size(bytes)}${total ? ` of ${size(total)}` : ""}`;
}
