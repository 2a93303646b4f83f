/* Keeps a page from starting a kernel in the place of one that runs already.
 *
 * Installed by plugins.js. JupyterLab shows a notebook before it has read which kernels
 * the server runs. A cell that is run in between starts a second kernel, and once that
 * is up, JupyterLab shuts down the one that the notebook had, with all its variables.
 * Here such a cell waits until the notebook has its kernel again; only a notebook that
 * has none on the server starts one, and never two at a time. The same for a page in a
 * background tab, which would not read the list at all.
 *
 * It wraps SessionContext, so it holds for whatever runs a cell, in JupyterLab and in
 * Notebook, of any version 4 and 7.
 */
const RETRY_MS = 500; // between two questions to a server that does not answer
const LONGEST_MS = 5000;
const ATTACH_MS = 10000; // for the page to connect to a kernel that the server named
const PATIENCE_MS = 1000; // without a word about why a cell waits
const TOPIC = "attach";
const WAITING =
  "Connecting to the kernel of this notebook. Your cell runs as soon as it is connected.";
const PASSING = [424, 429, 500, 502, 503, 504]; // of a server that is on its way

/** Attaches the contexts of one page to the kernels that run for their paths. */
export class Attach {
  constructor({ notice, watch, ServerConnection }) {
    this.notice = notice;
    this.watch = watch;
    this.ServerConnection = ServerConnection;
    this.beginnings = new WeakMap(); // of contexts: what their initialize gives
    this.connecting = new WeakSet(); // contexts for which that is under way
    this.starts = new WeakMap(); // of contexts: the start of a kernel under way
  }

  /** From now on, for all contexts of the class SessionContext. */
  install({ prototype }) {
    const attach = this;
    const { initialize, startKernel, changeKernel } = prototype;

    prototype.initialize = function () {
      return attach.once(attach.beginnings, this, () =>
        attach.begin(this, () => initialize.call(this))
      );
    };

    prototype.startKernel = function () {
      const { starts } = attach;
      const ended = () => starts.delete(this);
      return attach.once(starts, this, () => {
        const start = attach.start(this, () => startKernel.call(this));
        void start.then(ended, ended);
        return start;
      });
    };

    // "Select Kernel", asked for while the page showed none
    prototype.changeKernel = async function (options = {}) {
      if (options.name && !this.session?.kernel) {
        await attach.existing(this);
        if (this.session?.kernel?.name === options.name) {
          return this.session.kernel;
        }
      }
      return changeKernel.call(this, options);
    };
  }

  once(results, context, make) {
    if (!results.has(context)) {
      results.set(context, make());
    }
    return results.get(context);
  }

  /** As SessionContext.initialize, which gives up for ever when the list fails once, and
   * in a hidden page believes an empty one that it has not read.
   */
  async begin(context, initialize) {
    this.connecting.add(context);
    try {
      if (document.hidden) {
        await this.running(context);
      }
      return await initialize();
    } catch (error) {
      this.connecting.delete(context);
      await this.existing(context);
      if (context.session) {
        return false;
      }
      throw error;
    } finally {
      this.connecting.delete(context);
    }
  }

  /** As SessionContext.startKernel, for a notebook that has none on the server. */
  async start(context, startKernel) {
    const timer = setTimeout(() => this.tell(), PATIENCE_MS);
    try {
      await this.existing(context);
    } finally {
      clearTimeout(timer);
      this.notice.hide(TOPIC);
    }
    return context.isDisposed || context.session?.kernel ? false : startKernel();
  }

  tell() {
    if (!this.watch.running) {
      this.notice.show(WAITING, "busy", { topic: TOPIC });
    }
  }

  /** Connects a context to the kernel of its path, if there is one. */
  async existing(context) {
    const model = await this.running(context);
    if (!model || context.isDisposed || context.session) {
      return;
    }
    if (this.connecting.has(context)) {
      await connected(context);
    }
    if (!context.isDisposed && !context.session) {
      // its initialize has failed, or was over before the server ran this one
      context._handleNewSession(context.sessionManager.connectTo({ model }));
    }
  }

  /** The server's session of a context's path, once the server answers. */
  async running(context) {
    if (context.kernelPreference.shouldReuse === false) {
      return undefined; // wants one of its own
    }
    const manager = context.sessionManager;
    for (let rest = RETRY_MS; !context.isDisposed; rest = Math.min(2 * rest, LONGEST_MS)) {
      const models = await this.list(manager);
      if (models) {
        const model = models.find((one) => one.path === context.path && one.kernel);
        await know(manager, model);
        return model;
      }
      await new Promise((wake) => setTimeout(wake, rest));
    }
    return undefined;
  }

  /** All sessions that the server has; null as long as it does not answer. */
  async list({ serverSettings: settings }) {
    try {
      const url = `${settings.baseUrl}api/sessions?no_track_activity=1`;
      const answer = await this.ServerConnection.makeRequest(url, {}, settings);
      if (answer.ok) {
        return await answer.json();
      }
      return PASSING.includes(answer.status) ? null : [];
    } catch {
      return null; // no network, or a page of the proxy's
    }
  }
}

/** Lets the page's own list of sessions have it, which a hidden page does not read. */
async function know(manager, model) {
  if (!model || [...manager.running()].some((one) => one.id === model.id)) {
    return;
  }
  try {
    await (manager.requestRunning?.() ?? manager.refreshRunning());
  } catch {
    // its next look tells
  }
}

/** Until a context has a session, or for as long as that may take. */
async function connected(context) {
  let heard;
  const has = new Promise((wake) => {
    heard = () => context.session && wake();
  });
  context.sessionChanged.connect(heard);
  await Promise.race([has, new Promise((wake) => setTimeout(wake, ATTACH_MS))]);
  context.sessionChanged.disconnect(heard);
}
