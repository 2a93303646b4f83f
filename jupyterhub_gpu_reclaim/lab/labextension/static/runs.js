/* Cells that are run while the session is suspended: they ask for it, or wait.
 *
 * Installed by plugins.js. JupyterLab would show such a cell as running ("[*]") for as
 * long as the session is away. Here its user is asked whether to resume; who has chosen
 * so once is not asked. After "Not now" the cell is as if it had not been run.
 *
 * It wraps CodeCell.execute, through which notebooks and consoles run their cells.
 */

export class Runs {
  constructor({ watch }) {
    this.watch = watch;
  }

  install(CodeCell) {
    const runs = this;
    const { execute } = CodeCell;
    CodeCell.execute = async function (cell, context, ...rest) {
      if (!(await runs.mayRun(context))) {
        cell.setPrompt(String(cell.model.executionCount ?? ""));
        throw new Error("Canceled: the session is suspended"); // JupyterLab's own word
      }
      return execute.call(this, cell, context, ...rest);
    };
  }

  /** Whether the session is there, or was brought back for this cell. */
  async mayRun(context) {
    const { watch } = this;
    if (!watch.away && isCutOff(context)) {
      const { state } = await watch.look();
      if (state === "suspended") {
        void watch.lost(); // sooner than the page finds out by itself
        watch.set(true);
      }
    }
    if (!watch.away || watch.absence.isUnreachable) {
      return true; // JupyterLab keeps it for a server that does not answer
    }
    const answer = this.answer();
    watch.absence.askForCell();
    return answer;
  }

  /** True once the session is back, false once its user has said "Not now". */
  answer() {
    return new Promise((wake) => {
      const heard = new AbortController();
      const tell = (value) => () => {
        heard.abort();
        wake(value);
      };
      const { signal } = heard;
      this.watch.addEventListener("returned", tell(true), { signal });
      this.watch.addEventListener("left", tell(false), { signal });
    });
  }
}

function isCutOff({ session }) {
  return Boolean(session?.kernel) && session.kernel.connectionStatus !== "connected";
}
