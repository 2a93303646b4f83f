/* The waits of a tab: one that is hidden never looks, and a click ends a wait early. */

export class Rest {
  constructor() {
    this.nudged = false;
    this.wake = () => {};
    document.addEventListener("visibilitychange", () => this.nudge());
  }

  /** Ends the wait, or the next one: what has come in the middle of a look is not lost. */
  nudge() {
    this.nudged = true;
    this.wake();
  }

  /** Waits so long, and for as long as this tab is hidden. */
  async pause(milliseconds) {
    do {
      await new Promise((wake) => {
        const timer = setTimeout(wake, this.nudged ? 0 : milliseconds);
        this.wake = () => {
          clearTimeout(timer);
          wake();
        };
      });
      this.nudged = false;
    } while (document.hidden);
  }
}
