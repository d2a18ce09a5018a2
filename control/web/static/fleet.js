// Keeps the page as new as the control plane: one event stream, closed while the tab is hidden, because a browser
// opens only six connections to one address. The server sends finished, escaped HTML; nothing is built here.
const main = document.getElementById("fleet");
const live = document.getElementById("live");
const RETRY_MS = 3000;
let source = null;
let retry = 0;

function say(kind) {
  if (live.dataset.kind === kind) return;
  live.dataset.kind = kind;
  live.textContent = live.dataset[kind];
  live.hidden = false;
}

function replace(id, html) {
  const old = document.getElementById(id);
  if (!old) return;
  const box = document.createElement("template");
  box.innerHTML = html;
  const fresh = box.content.firstElementChild;
  if (fresh) old.replaceWith(fresh);
}

function open() {
  close();
  if (document.hidden) return;
  say(live.dataset.kind === "lost" ? "lost" : "connecting");
  source = new EventSource(live.dataset.stream);
  source.addEventListener("whole", (event) => {
    const { main: html, parts } = JSON.parse(event.data);
    main.innerHTML = html;
    for (const [id, part] of Object.entries(parts)) replace(id, part);
    say("live");
  });
  source.addEventListener("parts", (event) => {
    for (const [id, part] of Object.entries(JSON.parse(event.data))) replace(id, part);
  });
  source.addEventListener("error", () => {
    // The browser gives up after a refusal (503): try again ourselves, always at the same pace.
    say("lost");
    close();
    retry = setTimeout(open, RETRY_MS);
  });
}

function close() {
  clearTimeout(retry);
  if (source) source.close();
  source = null;
}

document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
window.addEventListener("pagehide", close);
window.addEventListener("pageshow", (event) => event.persisted && open());
open();
