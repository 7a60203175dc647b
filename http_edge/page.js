"use strict";

// What all pages of ours share: they ask their service for an overview every two seconds, and draw it. Each drawing
// is built anew and morphed onto the one before, so scrolling, focus and opened details stay. Text from others
// becomes text nodes, never HTML. A page's own script follows this one in the same element, and calls `live` once.

const POLL_MS = 2000, ANSWER_MAX_MS = 5000, GONE_AFTER_MS = 6500;
const SAID = { critical: "Act now", warning: "Look today", notice: "Good to know", fine: "All is well" };
const state = { overview: null, answeredAt: null, visibleAt: performance.now(), fault: null, isLocked: false, all: new Set() };
let page = null; // what `live` was given

// ---- words and numbers

const percent = (ratio, digits = 0) => ratio === null ? "?" : ratio > 0 && ratio < 0.005 && !digits ? "<1%" : (ratio * 100).toFixed(digits) + "%";
const many = (count, what) => `${count.toLocaleString("en")} ${what}${count === 1 ? "" : "s"}`;

function duration(seconds) {
  if (seconds < 0.1) return (seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0) + " ms";
  if (seconds < 120) return seconds.toFixed(seconds < 1 ? 1 : 0) + " s";
  if (seconds < 7200) return (seconds / 60).toFixed(0) + " min";
  return seconds < 172800 ? (seconds / 3600).toFixed(0) + " h" : (seconds / 86400).toFixed(0) + " days";
}

// ---- building and replacing

const SVG = new Set(["svg", "rect", "path", "line", "text", "circle", "title"]);

function h(tag, attributes, ...children) {
  const node = SVG.has(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) if (value !== null) node.setAttribute(name, value);
  node.append(...children.flat(9).filter((child) => child !== null && child !== ""));
  return node;
}

function morph(before, after) {
  if (before.nodeName !== after.nodeName) return before.replaceWith(after);
  if (before.nodeType === Node.TEXT_NODE) {
    if (before.data !== after.data) before.data = after.data;
    return;
  }
  for (const { name, value } of after.attributes) if (before.getAttribute(name) !== value) before.setAttribute(name, value);
  for (const { name } of [...before.attributes]) if (!after.hasAttribute(name) && name !== "open") before.removeAttribute(name);
  morphChildren(before, [...after.childNodes]);
}

function morphChildren(parent, after) {
  const before = [...parent.childNodes];
  before.slice(after.length).forEach((node) => node.remove());
  after.forEach((node, index) => (index < before.length ? morph(before[index], node) : parent.append(node)));
}

const put = (id, ...children) => morphChildren(document.getElementById(id), children.flat(9).filter((child) => child !== null));

// ---- pieces

function icon(severity) {
  const shape = { critical: "M5 1h6l4 4v6l-4 4H5l-4-4V5z", warning: "M8 1 16 15H0z" }[severity] || "M8 0a8 8 0 1 1 0 16A8 8 0 0 1 8 0z";
  const mark = { fine: "M4.5 8.5 7 11l4.5-5", warning: "M8 6.5v3.5M8 12.4v.1", notice: "M8 7.5V12M8 4.4v.1" }[severity] || "M8 4.5v4M8 11.4v.1";
  return h("svg", { class: `icon ${severity}`, viewBox: "0 0 16 16", "aria-hidden": "true" },
    h("path", { class: "shape", d: shape }), h("path", { class: "mark", d: mark }));
}

const badge = (severity, text) => h("span", { class: `badge ${severity}` }, icon(severity), text);

function table(columns, rows) {
  // The roles are said once more, as a narrow screen shows rows as blocks, which would take them away.
  const head = columns.map(([name, width]) => h("th", { role: "columnheader", scope: "col", class: width || null }, name));
  return h("table", { role: "table" },
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, head)), h("tbody", { role: "rowgroup" }, rows));
}

const cell = (label, ...children) => h("td", { role: "cell", "data-label": label }, children);
const rowHead = (...children) => h("th", { role: "rowheader", scope: "row" }, children);
const heading = (id, title, ...rest) =>
  h("div", { class: "top" }, h("h2", { id: `h-${id}` }, title), h("span", { class: "dim" }, rest));

function some(id, items, what) {
  const all = state.all.has(id), more = items.length > page.first[id];
  const text = all ? `Show the first ${page.first[id]}` : `Show all ${many(items.length, what)}`;
  return {
    items: all ? items : items.slice(0, page.first[id]),
    button: more ? h("button", { type: "button", "data-all": id, "aria-expanded": String(all) }, text) : null,
  };
}

// ---- what comes first: whether it is live, and what matters most

function troubles() {
  const waited = state.answeredAt === null ? null : performance.now() - state.answeredAt;
  const looked = performance.now() - Math.max(state.answeredAt ?? 0, state.visibleAt);
  if (state.isLocked) return { kind: "locked", severity: "notice", text: `This ${page.service} shows what it knows to whoever has its token.` };
  if (looked > GONE_AFTER_MS || (state.fault && state.answeredAt === null)) {
    const since = waited === null ? "" : ` for ${duration(waited / 1000)}`;
    const at = waited === null ? "" : ` What follows is from ${new Date(Date.now() - waited).toLocaleTimeString()}.`;
    return { kind: "gone", severity: "critical", text: `The ${page.service} hasn't answered${since}${state.fault ? ` (${state.fault})` : ""}.${at}` };
  }
  return null;
}

function drawTop(gone) {
  const { overview } = state;
  const age = overview && overview.age_s !== null ? overview.age_s + (performance.now() - state.answeredAt) / 1000 : null;
  const severity = state.isLocked ? "notice" : gone || (overview && overview.is_stale) ? "critical" : overview ? "fine" : "notice";
  const word = state.isLocked ? "Locked" : gone ? "Not live" : overview && overview.is_stale ? "Stale" : overview ? "Live" : "Waiting";
  put("top", h("b", null, "evenload"),
    h("span", { class: "dim" }, overview ? page.about(overview) : ""),
    h("span", { class: `live ${severity}` }, icon(severity), h("span", { class: "said", id: "live" }, word),
      h("span", { class: "dim", id: "age" }, age === null ? `nothing ${page.seen} yet` : age < 1 ? `${page.seen} just now` : `${page.seen} ${duration(Math.floor(age))} ago`)));
}

function drawHeadline(gone) {
  const findings = [...(gone ? [gone] : []), ...(state.overview?.findings ?? [])];
  const [first, ...others] = findings;
  if (!first) return;
  const more = others.length - 8;
  const line = (finding) => h("li", { class: finding.severity }, icon(finding.severity),
    h("span", null, h("span", { class: "hidden" }, `${SAID[finding.severity]}: `), finding.text));
  const headline = document.getElementById("headline");
  headline.className = `headline ${first.severity}`;
  put("headline",
    h("div", { class: "first" }, icon(first.severity), h("div", null, h("p", { class: "said" }, SAID[first.severity]), h("h1", null, first.text))),
    others.length ? h("ul", null, others.slice(0, 8).map(line), more > 0 ? h("li", { class: "dim" }, `and ${more} more`) : null) : null);
  document.title = (first.severity === "fine" ? "" : "! ") + first.text + " – evenload";
  // A screen reader hears of a new trouble once, not of each second that it lasts.
  const key = `${first.kind} ${first.about ?? first.broker_ids}`, announce = document.getElementById("announce");
  if (announce.dataset.key !== key) {
    announce.dataset.key = key;
    announce.textContent = first.text;
  }
}

// ---- asking and drawing

function draw() {
  const gone = troubles();
  document.body.className = gone && !state.isLocked ? "gone" : "";
  drawTop(gone);
  drawHeadline(gone);
}

function drawAll() {
  draw();
  for (const part of page.draw) part(state.overview);
}

// ---- the token, where one is asked for: kept for this tab alone, and sent in a header, as addresses end in logs

const TOKEN = "evenload-token";

function askForToken() {
  state.isLocked = true;
  const wasTried = sessionStorage.getItem(TOKEN) !== null, entry = document.getElementById("entry");
  sessionStorage.removeItem(TOKEN);
  if (wasTried) document.getElementById("entry-said").textContent = "That token doesn't allow to read here.";
  if (!entry.hidden && !wasTried) return;
  entry.hidden = false;
  document.getElementById("token").focus();
}

function enterToken() {
  const field = document.getElementById("token"), token = field.value.trim();
  field.value = "";
  // Another character can't stand in a header, and fetch would say that nothing can be reached.
  if (!/^[!-~]+$/.test(token)) return;
  sessionStorage.setItem(TOKEN, token);
  ask();
}

// Anything of the service, as JSON; an Error says what is wrong, in words that follow its name.
async function request(path, options = {}) {
  const token = sessionStorage.getItem(TOKEN), headers = token === null ? {} : { Authorization: `Bearer ${token}` };
  const answer = await fetch(path, { cache: "no-store", headers, signal: AbortSignal.timeout(ANSWER_MAX_MS), ...options });
  if (answer.status !== 401) state.isLocked = false;
  if (answer.ok) document.getElementById("entry").hidden = true;
  if (answer.status === 401 && sessionStorage.getItem(TOKEN) === token) askForToken();
  if (!answer.ok) {
    const { error } = await answer.json().catch(() => ({}));
    throw Object.assign(new Error(`it says ${answer.status} ${error || answer.statusText}`), { status: answer.status });
  }
  return answer.json();
}

const inWords = (error) => ({ TypeError: "it can't be reached", TimeoutError: "it is too slow", SyntaxError: "it answers nonsense" })[error.name] || error.message;

async function ask() {
  try {
    const overview = await request("v1/overview");
    if (overview.schema_version !== 1) throw new Error("it is of another version; reload this page");
    Object.assign(state, { overview, answeredAt: performance.now(), fault: null });
  } catch (error) {
    state.fault = inWords(error);
    return draw();
  }
  drawAll();
}

async function keepAsking() {
  for (;;) {
    if (!document.hidden) await ask();
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}

// Args: `service`, as sentences name it; `seen`: what it has done with what it shows; `about(overview)`: what stands
// beside the name; `first`: how many of each list are shown at first; `draw`: functions of the overview, one a part.
function live(what) {
  page = what;
  document.addEventListener("click", ({ target }) => {
    const id = target.dataset?.all;
    if (!id || !state.overview) return;
    if (!state.all.delete(id)) state.all.add(id);
    drawAll();
  });
  document.addEventListener("visibilitychange", () => {
    state.visibleAt = performance.now();
    if (!document.hidden) ask();
  });
  document.getElementById("enter").addEventListener("click", enterToken);
  document.getElementById("token").addEventListener("keydown", ({ key }) => key === "Enter" && enterToken());
  addEventListener("resize", () => state.overview && drawAll());
  setInterval(draw, 1000);
  keepAsking();
}
