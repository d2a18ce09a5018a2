// What a reader has done to a piece of the page survives its renewal: focus and selection, what is typed, what is
// open, how far a box is scrolled. Elements are found again by their id.
export function kept(old, renew) {
  const active = document.activeElement;
  const focus = old.contains(active) && active !== old ? active.id : "";
  const selection = focus && "selectionStart" in active ? [active.selectionStart, active.selectionEnd] : null;
  const typed = [...old.querySelectorAll("input[id], select[id]")].map((field) => [field.id, field.value]);
  const opened = [...old.querySelectorAll("details[id][open]")].map((box) => box.id);
  const boxes = [...old.querySelectorAll("pre")].map((box) => ({
    top: box.scrollTop,
    end: box.scrollTop + box.clientHeight >= box.scrollHeight - 4,
  }));
  const fresh = renew();
  for (const [id, value] of typed) {
    const field = document.getElementById(id);
    if (field) field.value = value;
  }
  for (const id of opened) {
    const box = document.getElementById(id);
    if (box) box.open = true;
  }
  fresh.querySelectorAll("pre").forEach((box, index) => {
    if (!boxes[index]) return;
    box.scrollTop = boxes[index].end ? box.scrollHeight : boxes[index].top; // who reads the end goes on reading it
  });
  const target = focus && document.getElementById(focus);
  if (target) {
    target.focus({ preventScroll: true });
    if (selection && selection[0] !== null) target.setSelectionRange(...selection);
  }
}
