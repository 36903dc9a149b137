"use strict";

// The key is behind the # of the address, which browsers send to no server.
const key = location.hash.slice(1);
const authorization = { authorization: `Bearer ${key}` };

// The pause before the next try to connect, in milliseconds.
const AGAIN = 2000;
// A stream says something every ten seconds.
const SILENCE = 25000;

// The colour of each step; others have none.
const TONES = {
  "preparing": "busy", "upgrading": "busy", "going back": "busy",
  "updated": "updated", "went back": "back",
  "failed": "failed", "stuck": "failed",
  // Of nodes that follow a channel by themselves.
  "fetching": "busy", "switching": "busy", "proving": "busy", "returning": "back",
  "current": "updated", "locked": "failed", "refused": "failed",
};

const place = (id) => document.getElementById(id);

// Makes an element; text is never taken as HTML.
function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function tone(machine) {
  if (machine.hold !== null) return "held";
  return TONES[machine.step] ?? "";
}

function complain(text) {
  place("message").textContent = text;
  place("message").hidden = text === "";
}

// Asks the visitor; null needs no question.
function confirmed(question) {
  if (question === null) return Promise.resolve(true);
  const dialog = place("question");
  place("asked").textContent = question;
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}

async function send(rollout, command, { machine, wave, question }) {
  if (!await confirmed(question)) return;
  try {
    const body = JSON.stringify({ rollout, command, machine, wave });
    const answer = await fetch("/commands", { method: "POST", headers: authorization, body });
    complain(answer.ok ? "" : await answer.text());
  } catch (error) {
    complain(`the command did not arrive: ${error.message}`);
  }
}

// `wave`: the one that is approved. A second press, before the page shows what the first one did, approves no other one.
function button(label, rollout, command, { machine = "", wave = null, question = null, strong = false } = {}) {
  const of = { "data-rollout": rollout, "data-command": command, "data-machine": machine };
  const made = make("button", { type: "button", ...of }, label);
  if (strong) made.className = "strong";
  made.addEventListener("click", () => send(rollout, command, { machine, wave, question }));
  return made;
}

// The commands that make sense now.
function actions(view) {
  const buttons = [];
  const add = (...words) => buttons.push(button(words[0], view.name, words[1], words[2]));
  const stands = view.paused !== null || view.phase === "stopped";
  const hasBegun = view.version !== "";
  if (stands) add("Resume", "resume");
  else if (!view.ended) add("Pause", "pause");
  const hasFailed = view.machines.some((machine) => machine.step === "failed");
  if (hasBegun && hasFailed && ["rolling", "stopped", "done"].includes(view.phase)) {
    add("Retry", "retry", { question: "Have the machines that failed try again?" });
  }
  if (hasBegun && !view.ended) {
    if (view.approved !== null && view.phase === "rolling") {
      const wave = view.approved + 1;
      add(`Approve wave ${wave}`, "approve", { wave });
    }
    add("Abort", "abort", { strong: true, question: "End the rollout? Machines keep the version that they run." });
  }
  if (hasBegun && view.phase !== "going back" && view.phase !== "went back") {
    const question = `Send all machines that run ${view.version} back to the previous version?`;
    add("Roll back", "rollback", { strong: true, question });
  }
  return make("div", { class: "actions" }, ...buttons);
}

// The steps at which a machine is still to get the version.
const IS_TO_GET_IT = ["waiting", "preparing", "prepared", "upgrading"];
// The step of a machine that belongs to the pool and is no part of its rollout.
const OUTSIDE = "outside";

function versions(machine, view) {
  if (machine.step === "updated") return `runs ${view.version}`;
  const runs = machine.running ?? machine.before;
  const gets = view.version !== "" && IS_TO_GET_IT.includes(machine.step) && runs !== view.version;
  const parts = [runs === null ? null : `runs ${runs}`, gets ? `gets ${view.version}` : null];
  return parts.filter((part) => part !== null).join(", ");
}

function machineCard(machine, view) {
  const name = machine.pool === "" ? machine.name : `${machine.name} (${machine.pool})`;
  const reason = machine.hold === null ? machine.reason : `held: ${machine.hold}`;
  const card = make("li", { class: "machine", "data-tone": tone(machine), "data-name": machine.name },
    make("h3", {}, name),
    make("span", { class: "step" }, machine.step),
    make("p", { class: "versions quiet" }, versions(machine, view)),
    make("p", { class: "reason" }, reason));
  if (view.holds && (machine.hold !== null || IS_TO_GET_IT.includes(machine.step))) {
    const { name: of } = machine;
    card.append(machine.hold === null
      ? button("Hold", view.name, "hold", { machine: of })
      : button("Release", view.name, "release", { machine: of }));
  }
  return card;
}

// The machines that are part of the rollout.
const partOf = (view) => view.machines.filter((machine) => machine.step !== OUTSIDE);

function bar(view) {
  const machines = partOf(view);
  const parts = ["updated", "back", "busy", "failed"].map((of) => {
    const share = machines.filter((machine) => tone(machine) === of).length / Math.max(machines.length, 1);
    const part = make("span", { class: of });
    part.style.width = `${100 * share}%`;
    return part;
  });
  return make("div", { class: "bar", "aria-hidden": "true" }, ...parts);
}

function progress(view) {
  const why = view.why === "" ? "" : `: ${view.why}`;
  if (view.version === "") return `${view.phase}${why}`;
  const machines = partOf(view);
  const done = machines.filter((machine) => machine.step === "updated").length;
  return `${view.phase}${why}; ${done} of ${machines.length} updated`;
}

function rolloutCard(view) {
  const title = [view.pool, view.version].filter((part) => part !== "").join(": ");
  const lines = [
    make("h2", {}, title),
    make("p", { class: "quiet" }, view.image),
    make("p", { class: "phase" }, progress(view)),
  ];
  if (view.paused !== null) lines.push(make("p", { class: "paused" }, `paused: ${view.paused}`));
  if (!view.driven && !view.ended) {
    lines.push(make("p", { class: "undriven" }, "no command drives this rollout now: nothing begins until `instarctl fleet roll` runs again"));
  }
  return make("section", { class: "rollout", "data-name": view.name, "data-phase": view.phase },
    ...lines, bar(view), actions(view),
    make("ul", { class: "machines" }, ...view.machines.map((machine) => machineCard(machine, view))));
}

// Shows all rollouts anew. The focus stays on the button that had it.
function show(rollouts) {
  const at = document.activeElement?.dataset;
  const cards = rollouts.map(rolloutCard);
  const none = make("p", { class: "quiet" }, "There is no rollout yet. `instarctl fleet roll` begins one, or a Pool in a cluster.");
  place("rollouts").replaceChildren(...(cards.length === 0 ? [none] : cards));
  if (at?.command !== undefined) {
    const again = [...document.querySelectorAll("button")].find((it) =>
      it.dataset.rollout === at.rollout && it.dataset.command === at.command && it.dataset.machine === at.machine);
    again?.focus();
  }
}

// Whether a finger or a mouse button is down, and the newest rollouts since then: if its button were replaced before it is let go, the press
// would be lost.
let isPressed = false;
let newest = null;

function showNewest() {
  if (isPressed || newest === null) return;
  const rollouts = newest;
  newest = null;
  show(rollouts);
}

addEventListener("pointerdown", () => { isPressed = true; });
for (const end of ["pointerup", "pointercancel"]) {
  addEventListener(end, () => {
    isPressed = false;
    // The click comes first.
    setTimeout(showNewest, 0);
  });
}

function take(line) {
  if (line === "") return;
  const said = JSON.parse(line);
  if (said.error !== undefined) return complain(said.error);
  newest = said.rollouts;
  showNewest();
}

// Reads the stream to its end.
async function watch() {
  const hangs = new AbortController();
  let timer = setTimeout(() => hangs.abort(), SILENCE);
  const answer = await fetch("/rollouts", { headers: authorization, signal: hangs.signal });
  if (!answer.ok) {
    clearTimeout(timer);
    throw new Error(await answer.text());
  }
  place("connection").textContent = "connected";
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let begun = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    clearTimeout(timer);
    timer = setTimeout(() => hangs.abort(), SILENCE);
    const lines = (begun + value).split("\n");
    begun = lines.pop();
    lines.forEach(take);
  }
  clearTimeout(timer);
}

async function run() {
  for (;;) {
    try {
      await watch();
      place("connection").textContent = "connecting again";
    } catch (error) {
      place("connection").textContent = `not connected: ${error.message}`;
    }
    await new Promise((resolve) => setTimeout(resolve, AGAIN));
  }
}

run();
