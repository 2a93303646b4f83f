/* Documents that are saved while the session is away: held, and saved once it is back.
 *
 * Installed by plugins.js. JupyterLab would show "File Save Error … Restart the server"
 * beside our own dialog. A save that is held does not count as done, so that nothing is
 * closed as if it were; what it holds is still on the page.
 *
 * A save whose answer was cut off may have been done. JupyterLab would ask its user about
 * a file that has "changed on disk", so what it sent is compared with what is there.
 *
 * It wraps Context of JupyterLab's document registry.
 */
const HELD = "Not saved yet: your file will be saved when the session is back.";
const AWAY = [424, 502, 503, 504]; // what the Hub and the proxy answer meanwhile

export class Saves {
  /** `documents` is JupyterLab's document manager, which knows of autosave. */
  constructor({ app, watch, documents }) {
    this.app = app;
    this.watch = watch;
    this.documents = documents;
    this.held = new Set();
    this.saving = new WeakMap(); // of contexts: what the save under way sends
    this.cut = new WeakMap(); // of contexts: what their saves without an answer sent
    watch.addEventListener("returned", () => void this.release());
  }

  install({ prototype }) {
    const saves = this;
    const { save, _handleError, _createSaveOptions } = prototype;

    prototype.save = async function (...rest) {
      if (saves.watch.away) {
        throw saves.hold(this);
      }
      saves.saving.set(this, null);
      try {
        await saves.compare(this);
        return await save.apply(this, rest);
      } catch (error) {
        throw saves.held.has(this) ? saves.hold(this) : error;
      } finally {
        saves.saving.delete(this);
      }
    };

    // how a save says that it has failed, before it does
    prototype._handleError = async function (error, title) {
      if (saves.saving.has(this) && AWAY.includes(error?.response?.status)) {
        saves.held.add(this);
        saves.cut.set(this, [...(saves.cut.get(this) ?? []), saves.saving.get(this)]);
        void saves.watch.lost();
        return undefined;
      }
      return _handleError.call(this, error, title);
    };

    prototype._createSaveOptions = function () {
      const options = _createSaveOptions.call(this);
      if (saves.saving.has(this)) {
        saves.saving.set(this, options);
      }
      return options;
    };
  }

  /** Takes the file on the disk for known, if it is what a save without an answer sent. */
  async compare(context) {
    const sent = this.cut.get(context);
    if (!sent) {
      return;
    }
    const { type, format } = sent[0];
    const { contents } = this.app.serviceManager;
    try {
      const asked = { type, format, content: true, hash: true };
      const found = await contents.get(context.path, asked);
      this.cut.delete(context);
      if (sent.some(({ content }) => same(content, found.content))) {
        context._updateContentsModel(found);
      }
    } catch (error) {
      console.warn(`not compared: ${error.message}`); // JupyterLab asks, at the worst
    }
  }

  /** Holds a document; JupyterLab's error of a save that a person has called off. */
  hold(context) {
    this.held.add(context);
    this.watch.absence.note(HELD);
    const error = new Error("Cancel");
    error.name = "ModalCancelError"; // no caller tells a person about that one
    return error;
  }

  /** Saves what was held, and what JupyterLab would have saved by itself meanwhile. */
  async release() {
    if (this.documents?.autosave) {
      for (const { context } of this.app.shell.widgets("main")) {
        if (context?.model?.dirty && context.canSave !== false) {
          this.held.add(context);
        }
      }
    }
    const held = [...this.held].filter((context) => !context.isDisposed);
    this.held.clear();
    for (const context of held) {
      await context.save().catch((error) => console.warn(`not saved: ${error.message}`));
    }
  }
}

function same(one, other) {
  return JSON.stringify(plain(one)) === JSON.stringify(plain(other));
}

/** A file's contents without what a server adds or orders: keys, lines, trust. */
function plain(value) {
  if (Array.isArray(value)) {
    const lines = value.length > 0 && value.every((one) => typeof one === "string");
    return lines ? value.join("") : value.map(plain);
  }
  if (value && typeof value === "object") {
    const keys = Object.keys(value).filter((key) => key !== "trusted");
    return keys.sort().map((key) => [key, plain(value[key])]);
  }
  return value;
}
