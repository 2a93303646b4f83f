// Questions of the managers' page, in the browser's own <dialog>: it keeps the focus
// inside, Escape closes it, and the focus goes back to where it was.

function element(name, className, ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

/** Shows a dialog; answers which button was pressed: "yes", "others", or nothing. */
export function shown(title, content, { yes, others, no }) {
  const dialog = element("dialog", "gpu-reclaim-dialog");
  const heading = element("h2", "", title);
  heading.id = "gpu-reclaim-dialog-title";
  dialog.setAttribute("aria-labelledby", heading.id);
  const form = element("form", "buttons");
  form.method = "dialog";
  if (no) form.append(button(no, "btn plain", ""));
  if (others) form.append(button(others, "btn plain", "others"));
  if (yes) form.append(button(yes, "btn btn-primary", "yes"));
  dialog.append(heading, element("div", "content", ...content), form);
  document.body.append(dialog);
  return new Promise((answer) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      answer(dialog.returnValue);
    });
    dialog.showModal();
  });
}

function button(label, className, value) {
  const made = element("button", className, label);
  made.value = value;
  return made;
}

/** Asks before something that cannot be undone. */
export const ask = (title, sentences, yes, others) =>
  shown(title, sentences.map((one) => element("p", "", one)), { yes, others, no: "Cancel" });
