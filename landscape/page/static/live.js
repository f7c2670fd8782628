// The stream of changes. A broken connection is reopened; meanwhile the page says so.
import { address, ask } from "./api.js";
import { fill } from "./dom.js";
import { WORDS } from "./words.js";

const PAUSES = [500, 1000, 2000, 4000, 8000]; // milliseconds before the next try; the last one repeats

/** Opens the stream; `on` has a listener per event, `opened` is called each time it is open. Returns a function that closes it. */
export function listen(parameters, on, opened = () => null) {
  const light = document.getElementById("connection");
  let source = null, tries = 0, timer = 0, closed = false;
  const say = (kind, words) => { light.dataset.kind = kind; fill(light, words); };

  function open() {
    source = new EventSource(address("events", parameters));
    source.addEventListener("open", () => { tries = 0; say("live", WORDS.connected); opened(); });
    source.addEventListener("error", () => {
      source.close();
      if (closed) return;
      say("broken", WORDS.reconnecting);
      ask("looks").catch(error => { if (error.status === 401 && !closed) say("broken", error.message); }); // the stream itself does not tell why it failed
      timer = setTimeout(open, PAUSES[Math.min(tries++, PAUSES.length - 1)]);
    });
    for (const [name, listener] of Object.entries(on))
      source.addEventListener(name, event => {
        let body;
        try { body = JSON.parse(event.data); } catch { return; }
        listener(body);
      });
    source.addEventListener("gone", () => { closed = true; source.close(); say("", ""); }); // there is nothing to reconnect to
  }

  open();
  return () => { closed = true; clearTimeout(timer); source.close(); say("", ""); };
}
