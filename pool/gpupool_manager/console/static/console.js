// What pages cannot do alone: dialogs, sliders, and showing at once what has changed.
"use strict";

// So long after an event the page is asked for again, once for all that come meanwhile: milliseconds.
const SETTLED = 1000;

document.addEventListener("click", (event) => {
  const pressed = event.target.closest("button, a");
  if (pressed === null) return;
  if (pressed.dataset.opens !== undefined) {
    document.getElementById(pressed.dataset.opens).showModal();
  } else if (pressed.dataset.closes !== undefined) {
    pressed.closest("dialog").close();
  } else if (pressed.dataset.back !== undefined && history.length > 1) {
    event.preventDefault();
    history.back();
  }
});

// Who is about to press something there must not lose it.
function isInUse(part) {
  return part.contains(document.activeElement) || document.querySelector("dialog[open]") !== null;
}

async function renew(part) {
  if (isInUse(part)) {
    later(part);
    return;
  }
  const answer = await fetch(location.href, { credentials: "same-origin" });
  if (answer.status === 401) {
    location.reload();
    return;
  }
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const fresh = page.getElementById(part.id);
  if (answer.ok && fresh !== null && !isInUse(part)) part.replaceChildren(...fresh.childNodes);
}

let isDue = false;
function later(part) {
  if (isDue) return;
  isDue = true;
  setTimeout(() => {
    isDue = false;
    renew(part).catch(() => later(part));
  }, SETTLED);
}

// Browsers open few connections to one host: a page that nobody sees has none.
function watch(heard) {
  let stream = null;
  let missed = false;
  const settle = () => {
    if (document.visibilityState === "visible" && stream === null) {
      if (missed) heard({ kind: "gap" });
      stream = new EventSource("/console/stream");
      stream.onmessage = (event) => heard(JSON.parse(event.data));
    } else if (document.visibilityState !== "visible" && stream !== null) {
      stream.close();
      stream = null;
      missed = true;
    }
  };
  document.addEventListener("visibilitychange", settle);
  settle();
}

const live = document.getElementById("live");
if (live !== null) {
  const kinds = live.dataset.live.split(" ");
  watch((event) => {
    if (event.kind === "gap" || kinds.some((kind) => event.kind.startsWith(kind))) later(live);
  });
}

// The newest first; more than these nobody reads.
const MOST_EVENTS = 200;

function tell(list, event) {
  const { kind, at, object, tenant, ...detail } = event;
  const item = document.createElement("li");
  const more = Object.entries(detail).map(([name, value]) => `${name}: ${JSON.stringify(value)}`);
  item.textContent = [at, kind, object, tenant, ...more].filter(Boolean).join(" · ");
  list.prepend(item);
  while (list.children.length > MOST_EVENTS) list.lastElementChild.remove();
}

const events = document.getElementById("events");
if (events !== null) watch((event) => tell(events, event));

// A slider writes into the field that is sent, so what nobody moves stays as it is.
for (const slider of document.querySelectorAll("input[data-slides]")) {
  const field = document.getElementById(slider.dataset.slides);
  const number = field.value.endsWith(slider.dataset.unit) ? Number.parseFloat(field.value) : 0;
  slider.value = field.value === "" ? slider.max : number;
  slider.hidden = false;
  slider.addEventListener("input", () => {
    field.value = slider.value + slider.dataset.unit;
  });
}
