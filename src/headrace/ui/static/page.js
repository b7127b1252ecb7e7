// Live updates, charts, the colour scheme, and keys. The pages work without this file.
"use strict";

// -- charts ----------------------------------------------------------------------------------------------

const COLOURS = ["--line-1", "--line-2", "--line-3", "--line-4", "--line-5", "--line-6", "--line-7"];
const plots = new Map();
const NUMBER = new Intl.NumberFormat("en", { maximumFractionDigits: 3 });

// Times as ISO 8601 writes them, in the time zone of the browser.
function clock(seconds, step) {
  const [, date, minutes, rest] = new Date(seconds * 1000 - new Date(seconds * 1000).getTimezoneOffset() * 60000).toISOString().match(/^(.*)T(.{5})(.{3})/);
  return step < 60 ? minutes + rest : step < 86400 ? minutes : date;
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// The parts of a stack are drawn as sums, the highest first.
function reading(chart, index) {
  return (plot, value, place, at) => {
    if (value == null) return "–";
    const below = chart.stacked ? plot.data[index + 2]?.[at] ?? 0 : 0;
    return NUMBER.format(value - below);
  };
}

function series(chart, line, index) {
  const stroke = colour(COLOURS[index % COLOURS.length]);
  // One column of numbers by name is drawn as bars, several as lines.
  const paths = chart.labels && chart.lines.length === 1 ? uPlot.paths.bars({ size: [0.6, 64] }) : undefined;
  const fill = chart.stacked ? stroke : chart.lines.length === 1 ? colour("--fill") : undefined;
  return { label: line.name, stroke, fill, width: chart.stacked ? 0 : 2, points: { show: !chart.stacked && !paths && chart.x.length < 40 }, value: reading(chart, index), paths };
}

// The legend is below the plot and shows the values under the pointer. Widths of its entries are in pixels.
function legendHeight(chart, width) {
  const entries = chart.lines.length + 1;
  return 26 * Math.ceil(entries / Math.max(1, Math.floor(width / (chart.stacked ? 190 : 150))));
}

function draw(element) {
  const text = element.dataset.chart;
  const known = plots.get(element);
  if (known && known.text === text) return;
  const chart = JSON.parse(text);
  const data = [chart.x, ...chart.lines.map((line) => line.y)];
  const shape = JSON.stringify([chart.stacked, chart.lines.map((line) => line.name)]);
  if (known && known.shape !== shape) {
    // Another chart has this place: a stream has got its first watermark, or the first rows of its state.
    known.plot.destroy();
    plots.delete(element);
  } else if (known) {
    known.text = text;
    known.period.range = chart.range;
    known.plot.setData(data);
    return;
  }
  const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
  const labels = chart.labels;
  const name = labels ? (at) => (Number.isInteger(at) ? labels[at - 1] ?? "" : "") : chart.time ? clock : (at) => NUMBER.format(at);
  const values = (plot, ticks, axis, space, step) => ticks.map((at) => name(at, step));
  const width = Math.max(200, element.clientWidth);
  // A chart over time shows the whole period, whatever is known of it.
  const period = { range: chart.range };
  const plot = new uPlot(
    {
      width,
      height: element.clientHeight - legendHeight(chart, width),
      scales: { x: { time: chart.time, range: (plot, low, high) => (period.range ?? (labels ? [low - 0.5, high + 0.5] : low === high ? [low - 1, high + 1] : [low, high])) }, y: { range: (plot, low, high) => (low === null ? [0, 1] : [Math.min(0, low), high > 0 ? high * 1.1 : 1]) } },
      axes: [{ ...axis, values, size: 34, space: labels ? 110 : 60 }, { ...axis, size: 64 }],
      cursor: { y: false },
      series: [{ label: chart.time ? "time" : chart.labels ? "row" : "x", value: (plot, at) => (at == null ? "–" : name(at, 1)) }, ...chart.lines.map((line, index) => series(chart, line, index))],
    },
    data,
    element,
  );
  plots.set(element, { plot, text, shape, period });
}

function drawAll() {
  for (const [element, { plot }] of plots) {
    if (!element.isConnected) {
      plot.destroy();
      plots.delete(element);
    }
  }
  for (const element of document.querySelectorAll("[data-chart]")) draw(element);
}

function redrawAll() {
  for (const [element, { plot }] of plots) {
    plot.destroy();
    plots.delete(element);
  }
  drawAll();
}

let resizing;
addEventListener("resize", () => {
  clearTimeout(resizing);
  resizing = setTimeout(redrawAll, 150);
});

// -- live updates ------------------------------------------------------------------------------------------

// Changes only what differs, so that focus, scroll positions and open parts stay.
function update(old, now) {
  if (old.nodeType !== now.nodeType || old.nodeName !== now.nodeName) {
    old.replaceWith(now);
    return;
  }
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== now.data) old.data = now.data;
    return;
  }
  if (old.matches("details.confirm") && (old.open || old.contains(document.activeElement))) {
    // A person is about to confirm what the old part says.
    if (old.querySelector("form")?.getAttribute("action") === now.querySelector("form")?.getAttribute("action")) return;
    old.replaceWith(now);
    return;
  }
  for (const { name } of [...old.attributes]) if (!now.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  for (const { name, value } of now.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  if (old.dataset.chart !== undefined) return;
  const [before, after] = [[...old.childNodes], [...now.childNodes]];
  after.forEach((child, index) => (index < before.length ? update(before[index], child) : old.append(child)));
  before.slice(after.length).forEach((child) => child.remove());
}

const RETRY_MS = 5000;

function follow(element) {
  let source = null;
  const open = () => {
    source = new EventSource(element.dataset.live);
    source.onopen = () => document.body.classList.remove("offline");
    source.onerror = () => {
      document.body.classList.add("offline");
      // The browser itself tries again only after a lost connection, not after a refusal.
      if (source?.readyState === EventSource.CLOSED) setTimeout(() => source?.readyState === EventSource.CLOSED && open(), RETRY_MS);
    };
    source.onmessage = (event) => {
      const template = document.createElement("template");
      template.innerHTML = `<div>${JSON.parse(event.data)}</div>`;
      const now = template.content.firstElementChild;
      for (const { name, value } of element.attributes) now.setAttribute(name, value);
      update(element, now);
      drawAll();
    };
  };
  // A page in the background needs no updates.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      source?.close();
      source = null;
    } else if (source === null) open();
  });
  if (!document.hidden) open();
  addEventListener("pagehide", () => source?.close());
}

// -- the colour scheme, keys ----------------------------------------------------------------------------------

const THEMES = ["auto", "light", "dark"];

function showTheme(button) {
  button.textContent = `Colours: ${document.documentElement.dataset.theme ?? "auto"}`;
}

function start() {
  const button = document.getElementById("theme");
  if (button) {
    showTheme(button);
    button.addEventListener("click", () => {
      const next = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme ?? "auto") + 1) % THEMES.length];
      if (next === "auto") delete document.documentElement.dataset.theme;
      else document.documentElement.dataset.theme = next;
      try {
        localStorage.setItem("headrace-theme", next);
      } catch {
        // The choice lasts as long as the page.
      }
      showTheme(button);
      redrawAll();
    });
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
  document.querySelectorAll("[data-live]").forEach(follow);
  document.body.addEventListener("htmx:afterSwap", drawAll);
  // Errors of a query are pages with status 400; they are shown like results.
  document.body.addEventListener("htmx:beforeSwap", (event) => {
    if (event.detail.xhr.status === 400) event.detail.shouldSwap = true;
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && event.target.matches("textarea")) event.target.form.requestSubmit();
    if (event.key === "/" && !event.target.matches("input, textarea, select")) {
      const search = document.querySelector("input[type=search]");
      if (search) {
        event.preventDefault();
        search.focus();
      }
    }
  });
  drawAll();
}

start();
