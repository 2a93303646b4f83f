/* Elements of a page in one line each; texts are always texts, never markup. */

export function element(tag, attributes = {}, text = "") {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    node.setAttribute(name, value);
  }
  node.textContent = text;
  return node;
}

export function button(label, names, act) {
  const styled = `jp-mod-styled gpu-reclaim-button ${names}`;
  const node = element("button", { type: "button", class: styled }, label);
  node.addEventListener("click", () => void act());
  return node;
}

/** [name, value] lines as the terms of a list. */
export function terms(lines) {
  return lines.flatMap(([name, value]) => [
    element("dt", {}, name),
    element("dd", {}, value),
  ]);
}
