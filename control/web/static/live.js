// Keeps the page as new as the control plane: one event stream, closed while the tab is hidden, because a browser
// opens only six connections to one address. The server sends finished, escaped HTML; nothing is built here.
import { localize } from "./times.js";
import { kept } from "./kept.js";

const main = document.getElementById("main");
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
  if (!fresh) return;
  kept(old, () => {
    old.replaceWith(fresh);
    return fresh;
  });
  localize(fresh);
}

function open() {
  close();
  if (document.hidden) return;
  say(live.dataset.kind === "lost" ? "lost" : "connecting");
  source = new EventSource(live.dataset.stream);
  source.addEventListener("whole", (event) => {
    const { main: html, parts } = JSON.parse(event.data);
    kept(main, () => {
      main.innerHTML = html;
      return main;
    });
    localize(main);
    for (const [id, part] of Object.entries(parts)) replace(id, part);
    say("live");
  });
  source.addEventListener("parts", (event) => {
    for (const [id, part] of Object.entries(JSON.parse(event.data))) replace(id, part);
  });
  source.addEventListener("error", () => {
    // The browser gives up after a refusal (503, 401): try again ourselves, always at the same pace.
    say("lost");
    close();
    retry = setTimeout(again, RETRY_MS);
  });
}

// A session that is over cannot come back by itself: load the page, which then asks.
async function again() {
  try {
    const answer = await fetch(live.dataset.stream, { method: "HEAD" });
    if (answer.status === 401) return location.reload();
  } catch {
    // Nobody answers: the next try says it again.
  }
  open();
}

function close() {
  clearTimeout(retry);
  if (source) source.close();
  source = null;
}

document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
window.addEventListener("pagehide", close);
window.addEventListener("pageshow", (event) => event.persisted && open());
localize(document);
open();
