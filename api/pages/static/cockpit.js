// Makes the pages live. Every page works without it: forms and links are plain HTML.
// It asks this origin only, and puts nothing into a page but what the server rendered.
"use strict";

const root = document.documentElement;
const stored = (name) => { try { return localStorage.getItem(name); } catch { return null; } };
const store = (name, value) => { try { localStorage.setItem(name, value); } catch { /* private mode */ } };
if (stored("theme")) root.dataset.theme = stored("theme");

const STEPS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
function ago(element) {
  const passed = (Date.now() - Date.parse(element.dateTime)) / 1000;
  const [size, unit] = STEPS.find(([size]) => Math.abs(passed) >= size) ?? [1, "s"];
  const amount = `${Math.trunc(Math.abs(passed) / size)} ${unit}`;
  element.textContent = passed >= 0 ? `${amount} ago` : `in ${amount}`;
}
const refreshTimes = () => document.querySelectorAll("time[data-ago]").forEach(ago);

// ---- live regions: on news, fetch this page again and replace what changed ----
let asking = false, again = false, pause = 400;
async function renew() {
  if (asking) { again = true; return; }
  asking = true;
  const began = performance.now();
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" }, credentials: "same-origin" });
    if (answer.redirected && answer.url.includes("/login")) { location.assign(answer.url); return; }
    if (answer.ok) replace(new DOMParser().parseFromString(await answer.text(), "text/html"));
  } catch { /* the service is away: the next event or poll asks again */ }
  finally {
    asking = false;
    // A page that takes long is asked for less often: most of the time is left to the service, and to the reader.
    pause = Math.max(400, 5 * (performance.now() - began));
    if (again) { again = false; setTimeout(renew, pause); }
  }
}
function replace(fresh) {
  for (const old of document.querySelectorAll("[data-live]")) {
    const next = fresh.getElementById(old.id);
    if (!next) continue;
    old.hidden = next.hidden;
    if (next.innerHTML === old.dataset.seen) continue;
    const html = next.innerHTML;
    const opened = new Set([...old.querySelectorAll("details[open]")].map((part) => part.id));
    const ticked = new Set([...old.querySelectorAll("input:checked")].map((part) => part.value));
    const focused = old.contains(document.activeElement) ? document.activeElement.id : "";
    const scrolled = [...old.querySelectorAll(".scroll")].map((part) => part.scrollLeft);
    old.replaceChildren(...document.adoptNode(next).childNodes);
    old.dataset.seen = html;
    for (const part of old.querySelectorAll("details")) if (part.id && opened.has(part.id)) part.open = true;
    for (const part of old.querySelectorAll("input[type=checkbox]")) if (ticked.has(part.value)) part.checked = true;
    old.querySelectorAll(".scroll").forEach((part, place) => { part.scrollLeft = scrolled[place] ?? 0; });
    if (focused) document.getElementById(focused)?.focus();
  }
  const state = fresh.querySelector("body").dataset;
  if (state.final === "true") { document.body.dataset.final = "true"; follow(); mark(false, "ended"); }
  filterLog();
}
let source = null, retry = 0, patience = 1000;
function mark(on, words) {
  for (const dot of document.querySelectorAll(".live-dot")) { dot.classList.toggle("on", on); dot.title = words; }
}
// A browser opens few connections to a host: only pages that are seen hold one.
function follow() {
  const { events, final } = document.body.dataset;
  clearTimeout(retry);
  source?.close();
  source = null;
  if (!events || final === "true" || document.hidden) return;
  let waiting = 0;
  const news = () => { if (!waiting) waiting = setTimeout(() => { waiting = 0; renew(); }, pause); };
  source = new EventSource(events);
  source.onopen = () => { patience = 1000; mark(true, "live"); };
  source.onmessage = news;
  source.onerror = () => {
    mark(false, "connecting again");
    // Browsers connect again by themselves after a broken line, but not after an answer that refused.
    if (source.readyState === EventSource.CLOSED) { retry = setTimeout(resume, patience); patience = Math.min(2 * patience, 60000); }
  };
  source.addEventListener("end", () => { source.close(); mark(false, "ended"); renew(); });
  source.addEventListener("reconnect", () => news());
}
function resume() { follow(); if (source) renew(); }
document.addEventListener("visibilitychange", resume);

// ---- the candidate's panel beside a tree or a chart ----
async function openPanel(link) {
  const address = link.getAttribute("href"); // a link in an SVG has no plain .href
  const answer = await fetch(address, { credentials: "same-origin" }).catch(() => null);
  if (!answer?.ok) { location.assign(address); return; }
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const summary = page.getElementById("summary");
  const panel = document.getElementById("panel");
  if (!summary || !panel) { location.assign(address); return; }
  const body = panel.querySelector(".body");
  body.replaceChildren(document.adoptNode(summary));
  const whole = panel.querySelector("a.button");
  whole.href = address;
  panel.hidden = false;
  panel.querySelector("button").focus();
  panel.back = link;
}
function closePanel() {
  const panel = document.getElementById("panel");
  if (!panel || panel.hidden) return;
  panel.hidden = true;
  panel.back?.focus?.();
}

function filterLog() {
  const field = document.getElementById("log-filter");
  const log = document.getElementById("log-text");
  if (!field || !log) return;
  const words = field.value.toLowerCase();
  for (const line of log.querySelectorAll("span.line")) line.hidden = !line.textContent.toLowerCase().includes(words);
}

document.addEventListener("click", (event) => {
  const target = event.target.closest("[data-panel], [data-copy], [data-theme-toggle], [data-close], [data-view]");
  if (!target) return;
  if (target.matches("[data-panel]")) {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    event.preventDefault();
    openPanel(target);
  } else if (target.matches("[data-copy]")) {
    const text = document.getElementById(target.dataset.copy).textContent;
    navigator.clipboard?.writeText(text).then(() => { target.textContent = "Copied"; });
  } else if (target.matches("[data-theme-toggle]")) {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    store("theme", root.dataset.theme);
  } else if (target.matches("[data-close]")) {
    closePanel();
  } else if (target.matches("[data-view]")) {
    for (const view of document.querySelectorAll(".view")) view.hidden = view.id !== target.dataset.view;
    store("diff", target.dataset.view);
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") closePanel();
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName ?? "");
  if (event.key === "/" && !typing) {
    const search = document.querySelector("input[type=search]");
    if (search) { event.preventDefault(); search.focus(); }
  }
});
document.addEventListener("mouseover", (event) => {
  const node = event.target.closest?.(".tree a");
  for (const edge of document.querySelectorAll(".edge.lit")) edge.classList.remove("lit");
  if (!node) return;
  const ordinal = node.getAttribute("href").split("/").pop();
  for (const edge of document.querySelectorAll(`.edge[data-of="${CSS.escape(ordinal)}"]`)) edge.classList.add("lit");
});
document.addEventListener("change", (event) => {
  const file = event.target.matches?.("input[type=file][data-into]") && event.target.files[0];
  if (file) file.text().then((text) => {
    document.getElementById(event.target.dataset.into).value = text;
    const name = document.getElementById("problem-name");
    if (name && !name.value) name.value = file.name.replace(/\.py$/, "");
  });
  if (event.target.matches?.("[data-all]")) {
    for (const box of document.querySelectorAll(`input[name="${event.target.dataset.all}"]`)) box.checked = event.target.checked;
  }
});
document.addEventListener("input", (event) => { if (event.target.id === "log-filter") filterLog(); });
document.addEventListener("submit", (event) => {
  const words = event.submitter?.dataset.confirm;
  if (words && !confirm(words)) event.preventDefault();
});
document.addEventListener("DOMContentLoaded", () => {
  root.classList.add("scripted");
  refreshTimes();
  setInterval(refreshTimes, 1000);
  const view = stored("diff");
  if (view && document.getElementById(view)) for (const other of document.querySelectorAll(".view")) other.hidden = other.id !== view;
  follow();
  const { poll } = document.body.dataset;
  if (poll) setInterval(() => { if (!document.hidden) renew(); }, 1000 * Number(poll));
});
