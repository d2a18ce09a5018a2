// Times in the viewer's own zone. The server writes them in its own, for pages without JavaScript.
const language = document.documentElement.lang;
const full = new Intl.DateTimeFormat(language, { dateStyle: "medium", timeStyle: "long" });
const clock = new Intl.DateTimeFormat(language, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });

export function localize(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const moment = new Date(time.dateTime);
    if (Number.isNaN(moment.getTime())) continue;
    time.title = full.format(moment);
    if ("clock" in time.dataset) time.textContent = clock.format(moment);
  }
}
