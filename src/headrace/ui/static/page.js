// Live updates, charts, the colour scheme, and keys. The pages work without this file.
"use strict";

// -- charts ----------------------------------------------------------------------------------------------

const COLOURS = ["--line-1", "--line-2", "--line-3", "--line-4", "--line-5", "--line-6", "--line-7"];
const plots = new Map();

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function series(chart, line, index) {
  const stroke = colour(COLOURS[index % COLOURS.length]);
  const fill = chart.stacked ? stroke : chart.lines.length === 1 ? colour("--fill") : undefined;
  return { label: line.name, stroke, fill, width: chart.stacked ? 0 : 2, points: { show: !chart.stacked && chart.x.length < 40 } };
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
    known.plot.setData(data);
    return;
  }
  const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
  const labels = chart.labels;
  const values = labels ? (plot, ticks) => ticks.map((at) => (Number.isInteger(at) ? labels[at - 1] ?? "" : "")) : undefined;
  const plot = new uPlot(
    {
      width: Math.max(200, element.clientWidth),
      // The legend is below the plot, in one or two lines.
      height: element.clientHeight - (chart.lines.length > 4 ? 78 : chart.lines.length > 1 ? 28 : 0),
      scales: { x: { time: chart.time }, y: { range: (plot, low, high) => (low === null ? [0, 1] : [Math.min(0, low), high > 0 ? high * 1.1 : 1]) } },
      axes: [{ ...axis, values, space: labels ? 110 : 60 }, { ...axis, size: 64 }],
      legend: { show: chart.lines.length > 1, live: false },
      cursor: { y: false },
      series: [{}, ...chart.lines.map((line, index) => series(chart, line, index))],
    },
    data,
    element,
  );
  plots.set(element, { plot, text, shape });
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

function follow(element) {
  let source = null;
  const open = () => {
    source = new EventSource(element.dataset.live);
    source.onopen = () => document.body.classList.remove("offline");
    source.onerror = () => document.body.classList.add("offline");
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

const THEMES = { auto: "Auto", light: "Light", dark: "Dark" };

function showTheme(button) {
  const theme = document.documentElement.dataset.theme ?? "auto";
  button.textContent = THEMES[theme];
  button.setAttribute("aria-label", `Colours: ${theme === "auto" ? "automatic" : theme}`);
}

function start() {
  const button = document.getElementById("theme");
  if (button) {
    showTheme(button);
    button.addEventListener("click", () => {
      const names = Object.keys(THEMES);
      const next = names[(names.indexOf(document.documentElement.dataset.theme ?? "auto") + 1) % names.length];
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
