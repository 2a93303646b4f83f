/* The two plugins of a page: the connection to a session, and its state in the corner.
 *
 * Called by remoteEntry.js. The first takes the place of
 * "@jupyterlab/hub-extension:connectionlost", whose dialog calls a suspended session "not
 * running" and offers to restart it.
 */
import { Attach } from "./attach.js";
import { Item } from "./view/item.js";
import { connectLanguages } from "./languages.js";
import { Notice } from "./view/notice.js";
import { markRequests } from "./requests.js";
import { Runs } from "./runs.js";
import { Saves } from "./saves.js";
import { Service } from "./service.js";
import { Updates } from "./updates.js";
import { Watch } from "./watch.js";

const NAME = "jupyterhub-gpu-reclaim";

/** `load` gives a module that the page shares. */
export async function makePlugins(load) {
  const application = await load("@jupyterlab/application");
  const { Dialog, SessionContext } = await load("@jupyterlab/apputils");
  const { CodeCell } = await load("@jupyterlab/cells");
  const { IDocumentManager } = await load("@jupyterlab/docmanager");
  const { Context } = await load("@jupyterlab/docregistry");
  const lsp = await load("@jupyterlab/lsp").catch(() => ({})); // not everywhere
  const { IStatusBar } = await load("@jupyterlab/statusbar");
  const { ServerConnection } = await load("@jupyterlab/services");
  const { Widget } = await load("@lumino/widgets");
  const { ConnectionLost, IConnectionLost, JupyterFrontEnd, JupyterLab } = application;
  const here = {}; // what the first plugin has made for the second

  const connection = {
    id: `${NAME}:connectionlost`,
    description: "Says that a session is suspended, and resumes it on a click.",
    requires: [JupyterFrontEnd.IPaths],
    optional: [JupyterLab.IInfo],
    provides: IConnectionLost,
    autoStart: true,
    activate(app, paths, info) {
      if (!paths.urls.hubPrefix) {
        return ConnectionLost; // no Hub here: the page's own words
      }
      addStyle();
      markRequests(ServerConnection);
      here.notice = new Notice();
      here.service = new Service(paths.urls, ServerConnection);
      const parts = { ...here, Dialog, ServerConnection };
      here.watch = new Watch(app, paths.urls, info, parts);
      new Attach({ ...here, ServerConnection }).install(SessionContext);
      new Runs(here).install(CodeCell);
      // JupyterLab asks the service that is provided here, Notebook asks none
      app.serviceManager.connectionFailure.connect(() => void here.watch.lost());
      return () => here.watch.lost();
    },
  };

  const state = {
    id: `${NAME}:state`,
    description: "Shows the session's GPU and when it is suspended; warns before that.",
    requires: [IConnectionLost],
    optional: [IStatusBar, IDocumentManager, lsp.ILSPDocumentConnectionManager].filter(Boolean),
    autoStart: true,
    activate(app, lost, statusBar, documents, languages) {
      if (!here.watch) {
        return;
      }
      new Saves({ app, watch: here.watch, documents }).install(Context);
      if (languages) {
        here.watch.addEventListener("returned", () => connectLanguages(languages));
      }
      const item = new Item(here.service, statusBar, Widget);
      here.watch.absence.item = item;
      const updates = new Updates(here, item);
      void app.restored.then(() => updates.run());
    },
  };
  return [connection, state];
}

function addStyle() {
  const link = document.createElement("link");
  link.rel = "stylesheet";
  link.href = new URL("style.css", import.meta.url).href;
  document.head.append(link);
}
