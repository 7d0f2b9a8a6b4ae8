// What pages cannot do alone: dialogs, sliders, and showing at once what has changed.
"use strict";

// So long after an event the page is asked for again, once for all that come meanwhile: milliseconds.
const SETTLED = 1000;

// Longer than a browser takes to connect anew when the manager has only hung up.
const LOST = 5000;

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

// The page as it is now; who is signed in no more is asked to, and comes back to it.
async function ask() {
  const answer = await fetch(location.href, { credentials: "same-origin" });
  if (answer.status === 401) location.reload();
  return answer;
}

async function renew(part) {
  if (isInUse(part)) {
    later(part);
    return;
  }
  const answer = await ask();
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

// What is shown may be old: nobody is to take it for how things are.
function sayLost(since) {
  const note = document.getElementById("lost");
  const time = since === null ? "" : since.toLocaleTimeString();
  note.textContent = since === null ? "" : `The manager does not answer. This is as of ${time}.`;
  note.hidden = since === null;
}

// Browsers open few connections to one host: a page that nobody sees has none. ``begin``: for who
// is told again of what was missed meanwhile.
function watch(heard, address = "/console/stream", begin = null) {
  let stream = null;
  let missed = false;
  let timer = null;
  const listen = () => {
    if (document.visibilityState !== "visible" || stream !== null) return;
    let isNew = true;
    stream = new EventSource(address);
    stream.onmessage = (event) => heard(JSON.parse(event.data));
    stream.onopen = () => {
      clearTimeout(timer);
      timer = null;
      sayLost(null);
      if (isNew && begin !== null) begin();
      else if (missed) heard({ kind: "gap" });
      isNew = missed = false;
    };
    stream.onerror = () => {
      const since = new Date();
      timer = timer ?? setTimeout(() => sayLost(since), LOST);
      if (stream.readyState !== EventSource.CLOSED) return; // it connects anew by itself
      hangUp();
      ask().catch(() => null).finally(() => setTimeout(listen, SETTLED));
    };
  };
  const hangUp = () => {
    stream?.close();
    stream = null;
    missed = true;
  };
  document.addEventListener("visibilitychange", () => {
    if (document.visibilityState === "visible") listen();
    else hangUp();
  });
  listen();
}

const live = document.getElementById("live");
if (live !== null) {
  const kinds = live.dataset.live.split(" ");
  watch((event) => {
    if (event.kind === "gap" || kinds.some((kind) => event.kind.startsWith(kind))) later(live);
  });
  // How busy and how warm GPUs are no event tells.
  const seconds = Number(live.dataset.every ?? 0);
  if (seconds > 0) {
    setInterval(() => {
      if (document.visibilityState === "visible") later(live);
    }, seconds * 1000);
  }
}

// The newest first; more than these nobody reads.
const MOST_EVENTS = 200;

function tell(list, event) {
  const { kind, at, object, tenant, ...detail } = event;
  const item = document.createElement("li");
  const more = Object.entries(detail).map(([name, value]) => `${name}: ${JSON.stringify(value)}`);
  const words = [at?.replace(/\..*/, " UTC").replace("T", " "), kind, object, tenant, ...more];
  const gap = "Here events may be missing.";
  item.textContent = kind === "gap" ? gap : words.filter(Boolean).join(" · ");
  list.prepend(item);
  while (list.children.length > MOST_EVENTS) list.lastElementChild.remove();
}

const events = document.getElementById("events");
// It begins with the last ones, each time that it is asked for anew.
if (events !== null) {
  const begin = () => {
    events.replaceChildren();
    events.ariaLive = "off"; // these nobody has to hear
    setTimeout(() => { events.ariaLive = "polite"; }, SETTLED);
  };
  watch((event) => tell(events, event), "/console/stream?recent=50", begin);
}

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
