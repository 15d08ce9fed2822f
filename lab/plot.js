"use strict";
// Draws charts as SVG, exports them, and sorts tables. No library, no network.
const byId = id => document.getElementById(id);
const finite = x => typeof x === "number" && isFinite(x);

function el(tag, attributes = {}, ...children) {
  const svg = ["svg", "g", "path", "line", "rect", "text", "circle", "clipPath"].includes(tag);
  const e = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
  e.append(...children);
  return e;
}

const tip = el("div", {id: "tip"});
document.body.append(tip);
function showTip(event, text) {
  tip.textContent = text;
  tip.style.display = "block";
  tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)) + "px";
  tip.style.top = Math.max(4, Math.min(event.clientY + 16, innerHeight - tip.offsetHeight - 8)) + "px";
}
const hideTip = () => {
  tip.style.display = "none";
};
function hover(e, text) {
  if (!text) return e;
  e.addEventListener("pointermove", event => {
    event.stopPropagation();
    showTip(event, text);
  });
  e.addEventListener("pointerleave", hideTip);
  return e;
}

// The order of two cells of a column: texts come before numbers.
function ascending(a, b) {
  if (typeof a !== typeof b) return typeof a === "number" ? 1 : -1;
  if (a === b) return 0;
  return a < b ? -1 : 1;
}
// A click on a column's title sorts by it: by numbers where there are some.
function sortable(table) {
  const value = (row, i) => {
    const t = row.cells[i].textContent;
    const n = parseFloat(t.replace(/^[<‹] ?/, ""));
    return isNaN(n) ? t : n;
  };
  const sortBy = (th, i) => {
    const down = th.getAttribute("aria-sort") !== "descending";
    for (const other of table.rows[0].cells) other.removeAttribute("aria-sort");
    th.setAttribute("aria-sort", down ? "descending" : "ascending");
    const sign = down ? -1 : 1;
    table.append(...[...table.rows].slice(1).sort((a, b) => sign * ascending(value(a, i), value(b, i))));
  };
  [...table.rows[0].cells].forEach((th, i) => {
    th.tabIndex = 0;
    th.addEventListener("click", () => sortBy(th, i));
    th.addEventListener("keydown", event => {
      if (event.key === "Enter") sortBy(th, i);
    });
  });
}

// About n round numbers from low to high.
function roundTicks(low, high, n) {
  const rough = (high - low) / n || 1;
  const tens = 10 ** Math.floor(Math.log10(rough));
  const every = [1, 2, 5, 10].map(k => k * tens).find(s => s >= rough * .999);
  const ticks = [];
  for (let t = Math.ceil(low / every - 1e-9); t * every <= high + 1e-9 * every; t++)
    ticks.push(+(t * every).toPrecision(12));
  return ticks;
}
// An axis: {low, high, log (the base, or nothing), label, format, ticks}, or {names} for rows or columns.
function ticksOf(axis, n) {
  if (axis.names) return [];
  if (axis.ticks) return axis.ticks;
  if (!axis.log) return roundTicks(axis.low, axis.high, n);
  const of = v => Math.log(v) / Math.log(axis.log);
  const every = Math.max(1, Math.ceil((of(axis.high) - of(axis.low)) / n));
  const ticks = [];
  for (let e = Math.floor(of(axis.low)); e <= of(axis.high) + 1e-9; e += every)
    for (const k of axis.log === 10 && of(axis.high) - of(axis.low) < 2.5 ? [1, 2, 5] : [1])
      ticks.push(k * axis.log ** e);
  return ticks.filter(t => t >= axis.low * .999 && t <= axis.high * 1.001);
}
function scaleOf(axis, from, to) {
  if (axis.names) return v => from + v / axis.names.length * (to - from);
  const f = axis.log ? v => Math.log(Math.max(v, 1e-300)) : v => v;
  const low = f(axis.low);
  const span = f(axis.high) - low || 1;
  return v => from + (f(v) - low) / span * (to - from);
}

// Boxes [x0, y0, x1, y1] along a line through points [x, y].
function boxesOf(points) {
  return points.slice(1).flatMap(([x1, y1], i) => {
    const [x0, y0] = points[i];
    const n = Math.max(1, Math.ceil(Math.max(Math.abs(x1 - x0), Math.abs(y1 - y0)) / 4));
    return Array.from({length: n + 1}, (_, k) => [x0 + (x1 - x0) * k / n, y0 + (y1 - y0) * k / n])
        .map(([x, y]) => [x - 1, y - 1, x + 1, y + 1]);
  });
}

// Where the names of dots stand, in pixels: [x, y, anchor] of each of `dots` [x, y, text]. No name covers another one,
// a dot, a box or an edge: it stands right or left of its dot, or else on the nearest line where it has room.
function besideDots(dots, boxes, edges) {
  const gap = 8;
  const taken = [...boxes, ...dots.map(([x, y]) => [x - 5, y - 5, x + 5, y + 5])];
  const apart = ([x0, y0, x1, y1], t) => x1 <= t[0] || t[2] <= x0 || y1 <= t[1] || t[3] <= y0;
  const isInside = ([x0, y0, x1, y1]) => x0 >= edges.left && x1 <= edges.right && y0 >= edges.top && y1 <= edges.bottom;
  const isFree = box => isInside(box) && taken.every(t => apart(box, t));
  const places = [];
  for (let off = 0; off <= edges.bottom - edges.top; off += 3)
    for (const dy of off ? [-off, off] : [0])
      for (const anchor of ["start", "end"]) places.push([dy, anchor]);
  return dots.map(([x, y, text]) => {
    const wide = 7.2 * text.length;
    const boxAt = ([dy, anchor]) => {
      const from = anchor === "start" ? x + gap : x - gap - wide;
      return [from, y + dy - 7, from + wide, y + dy + 7];
    };
    const found = places.find(p => isFree(boxAt(p))) || places[0];
    taken.push(boxAt(found));
    return [x + (found[1] === "start" ? gap : -gap), y + found[0], found[1]];
  });
}

const path = points => points.map((p, i) => (i ? "L" : "M") + p[0].toFixed(1) + " " + p[1].toFixed(1)).join("");
// The kinds of layers, and what their points are.
const shapes = {
  line: (l, x, y) => [el("path", {
    d: path(l.points.map(p => [x(p[0]), y(p[1])])),
    fill: "none",
    stroke: l.color,
    "stroke-dasharray": l.dash || "none",
    "stroke-width": l.width || 2,
    "stroke-linejoin": "round"
  })],
  band: (l, x, y) => [el("path", {
    d: path([...l.points.map(p => [x(p[0]), y(p[3])]), ...l.points.map(p => [x(p[0]), y(p[1])]).reverse()]),
    fill: l.color,
    "fill-opacity": .15
  })],
  dots: (l, x, y) => l.points.map(
      ([a, b, , , what, fill]) => hover(
          el("circle", {cx: x(a), cy: y(b), r: l.r || 4.5, fill: fill || l.color, "fill-opacity": l.opacity || .75}),
          what)),
  // [x, y, to x, to y, text to show, colour, opacity]
  bars: (l, x, y) => l.points.map(
      ([a, b, c, d, what, fill, opacity]) => hover(
          el("rect", {
            x: Math.min(x(a), x(c)) + (l.gap || 0),
            y: Math.min(y(b), y(d)),
            width: Math.max(.6, Math.abs(x(c) - x(a)) - 2 * (l.gap || 0)),
            height: Math.max(.5, Math.abs(y(d) - y(b))),
            fill: fill || l.color,
            "fill-opacity": opacity || 1
          }),
          what)),
  // upright lines at x, from the bottom to the top
  marks: (l, x, y, c) => l.points.map(
      ([a, , , , what]) => hover(
          el("line", {
            x1: x(a),
            x2: x(a),
            y1: c.top,
            y2: c.bottom,
            stroke: l.color,
            "stroke-width": 1.5,
            "stroke-dasharray": "3 3"
          }),
          what)),
  // [x, y, , , text]: names beside dots and off the line through `avoid`; a thin line leads to one that stands away
  names: (l, x, y, c) => {
    const dots = l.points.map(([a, b, , , text]) => [x(a), y(b), text]);
    return besideDots(dots, boxesOf(l.avoid.map(([a, b]) => [x(a), y(b)])), c).flatMap(([at, level, anchor], i) => {
      const [dotX, dotY, text] = dots[i];
      const name = el("text", {x: at, y: level + 4, "text-anchor": anchor}, text);
      if (Math.abs(level - dotY) < 8) return [name];
      return [el("line", {class: "axis", x1: dotX, y1: dotY, x2: at, y2: level}), name];
    });
  },
  // [x, y, , , text, where it ends or begins, colour]
  texts: (l, x, y) => l.points
                          .map(
                              ([a, b, , , text, anchor, color]) =>
                                  el("text",
                                     {
                                       class: l.strong ? "strong" : "",
                                       x: x(a) + (anchor === "start" ? 8 : 0),
                                       y: y(b) + 4,
                                       "text-anchor": anchor || "middle",
                                       ...(color || l.color ? {style: `fill:${color || l.color}`} : {})
                                     },
                                     text))
};

// The rows of a legend between left and right: each a list of [layer, where its entry begins].
function legendRows(layers, left, right) {
  const rows = [];
  let end = Infinity;  // of the last row
  for (const layer of layers) {
    const wide = 34 + 7.2 * layer.name.length;
    if (end + wide >= right) {
      rows.push([]);
      end = left;
    }
    rows[rows.length - 1].push([layer, end]);
    end += wide;
  }
  return rows;
}

// The last row stands at the bottom.
function drawLegend(svg, rows, bottom) {
  rows.forEach((row, i) => row.forEach(([layer, at]) => {
    const level = bottom - 18 * (rows.length - 1 - i);
    svg.append(el("line", {
      x1: at,
      x2: at + 18,
      y1: level - 4,
      y2: level - 4,
      stroke: layer.color,
      "stroke-width": 3,
      "stroke-dasharray": layer.dash || "none"
    }));
    svg.append(el("text", {x: at + 24, y: level, "text-anchor": "start"}, layer.name));
  }));
}

let charts = 0;
// Draws layers {kind, name, color, points} into a place that is empty, or whose last drawing it replaces. Layers with a
// name and `legend` are listed below. An SVG is as wide as its place, so that text keeps its size on a phone.
function plot(place, {x, y, layers, height, minWidth = 260, legend = false, bottom = 0}) {
  if (place.querySelector(":scope > svg")) place.querySelector(":scope > svg").remove();
  const longest = names => Math.max(...names.map(n => n.length));
  let left = y.hidden ? 8 : 56;
  if (y.names) left = Math.min(210, 18 + 7 * longest(y.names));
  const right = y.right || 12;
  const width = Math.max(minWidth, place.clientWidth - 18);
  const tilted = x.names && (width - left - right) / x.names.length < 8 * longest(x.names);
  let top = y.label ? 26 : 10;
  if (x.names) top = tilted ? 14 + 4.6 * longest(x.names) : 24;
  const rows = legendRows(legend ? layers.filter(l => l.name && l.kind === "line") : [], left, width - 8);
  let below = 18 * rows.length + bottom;
  if (x.hidden || x.names) below += 6;
  else below += x.label ? 40 : 24;
  const all = height || top + below + (y.row || 30) * y.names.length;
  const c = {width, height: all, left, right: width - right, top, bottom: all - below};
  const svg =
      el("svg", {viewBox: `0 0 ${width} ${all}`, width, height: all, role: "img", style: `min-width:${minWidth}px`});
  const sx = scaleOf(x, c.left, c.right);
  const sy = scaleOf(y, ...(y.names ? [c.top, c.bottom] : [c.bottom, c.top]));
  const format = axis => axis.format || String;
  const text = (a, b, anchor, what, more = {}) =>
      svg.append(el("text", {x: a, y: b, "text-anchor": anchor, ...more}, what));
  if (!y.hidden)
    for (const t of ticksOf(y, Math.max(2, (c.bottom - c.top) / 40))) {
      svg.append(el("line", {class: "axis", x1: c.left, x2: c.right, y1: sy(t), y2: sy(t)}));
      text(c.left - 6, sy(t) + 4, "end", format(y)(t));
    }
  if (!x.hidden)
    for (const t of ticksOf(x, Math.max(2, (c.right - c.left) / (x.space || 80)))) {
      if (x.grid) svg.append(el("line", {class: "axis", x1: sx(t), x2: sx(t), y1: c.top, y2: c.bottom}));
      text(sx(t), c.bottom + 16, "middle", format(x)(t));
    }
  (y.names || []).forEach((n, i) => text(c.left - 8, sy(i + .5) + 4, "end", n, {class: "strong"}));
  (x.names || [])
      .forEach(
          (n, i) => tilted ?
              text(
                  0, 0, "start", n, {class: "strong", transform: `translate(${sx(i + .4)} ${c.top - 6}) rotate(-35)`}) :
              text(sx(i + .5), c.top - 8, "middle", n, {class: "strong"}));
  if (x.label) text(c.right, c.bottom + 33, "end", x.label);
  if (y.label) text(8, 14, "start", y.label);
  const clip = `clip${++charts}`;
  const inside = el("g", {"clip-path": `url(#${clip})`});
  svg.append(
      el("clipPath", {id: clip}, el("rect", {x: c.left, y: 0, width: width - c.left, height: c.bottom + .5 + bottom})),
      inside);
  for (const l of layers) inside.append(...shapes[l.kind](l, sx, sy, c));
  drawLegend(svg, rows, all - 8);
  place.append(svg);
  svg.layers = layers;
  return {svg, x: sx, y: sy, ...c};
}

// Charts over steps share what they show of the run, and a crosshair. Drag to zoom; two clicks show the whole run.
const overSteps = {
  zoom: null,
  charts: new Map(),
  redraw() {}
};
// [name, value] of the lines that have begun and not ended at a step, the largest value first.
function valuesAt(step, layers) {
  const lines = layers.filter(
      l => l.kind === "line" && l.name && l.points.length && l.points[0][0] <= step &&
          step <= l.points[l.points.length - 1][0]);
  const nearest = l => l.points.reduce((a, b) => Math.abs(b[0] - step) < Math.abs(a[0] - step) ? b : a);
  return lines.map(l => [l.name, nearest(l)[1]]).sort((a, b) => b[1] - a[1]);
}
function plotSteps(place, spec) {
  const ends = spec.layers.filter(l => l.kind === "line").flatMap(l => l.points.map(p => p[0]));
  const [low, high] = overSteps.zoom || [0, Math.max(1, ...ends)];
  const chart = plot(place, {...spec, x: {low, high, label: "step"}, legend: true});
  const upright = el("line", {y1: chart.top, y2: chart.bottom, stroke: "var(--muted)", display: "none"});
  chart.svg.append(upright);
  overSteps.charts.set(place, {chart, upright});
  const stepAt = event => {
    const r = chart.svg.getBoundingClientRect();
    const at = (event.clientX - r.left) * chart.width / r.width;
    return Math.max(low, Math.min(high, low + (at - chart.left) / (chart.right - chart.left) * (high - low)));
  };
  let from = null;
  const selected =
      el("rect", {y: chart.top, height: chart.bottom - chart.top, fill: "var(--bar)", "fill-opacity": .15, width: 0});
  chart.svg.append(selected);
  chart.svg.addEventListener("pointermove", event => {
    const step = Math.round(stepAt(event));
    for (const o of overSteps.charts.values())
      for (const [k, v] of [["x1", o.chart.x(step)], ["x2", o.chart.x(step)], ["display", "inline"]])
        o.upright.setAttribute(k, v);
    const text = v => spec.y.format ? spec.y.format(v) : +v.toPrecision(4);
    const values = valuesAt(step, spec.layers).map(([name, value]) => `${text(value)}  ${name}`);
    showTip(event, `step ${step}\n` + values.join("\n"));
    if (from === null) return;
    const a = chart.x(Math.min(from, step));
    const b = chart.x(Math.max(from, step));
    selected.setAttribute("x", a);
    selected.setAttribute("width", b - a);
  });
  chart.svg.addEventListener("pointerdown", event => {
    from = stepAt(event);
  });
  chart.svg.addEventListener("pointerup", event => {
    const to = stepAt(event);
    const begin = from;
    from = null;
    selected.setAttribute("width", 0);
    if (begin === null || Math.abs(to - begin) < (high - low) / 50) return;
    overSteps.zoom = [Math.round(Math.min(begin, to)), Math.round(Math.max(begin, to))];
    overSteps.redraw();
  });
  chart.svg.addEventListener("pointerleave", () => {
    for (const o of overSteps.charts.values()) o.upright.setAttribute("display", "none");
    hideTip();
  });
  chart.svg.addEventListener("dblclick", () => {
    overSteps.zoom = null;
    overSteps.redraw();
  });
}

// A figure alone: its drawings and titles where they are on the page, with their styles inside.
function figureSvg(figure) {
  const box = figure.getBoundingClientRect();
  const scale = getComputedStyle(figure);
  const out = el("svg", {
    xmlns: "http://www.w3.org/2000/svg",
    width: Math.ceil(box.width),
    height: Math.ceil(box.height),
    viewBox: `0 0 ${box.width} ${box.height}`
  });
  out.append(el("rect", {
    width: box.width,
    height: box.height,
    fill: scale.backgroundColor === "rgba(0, 0, 0, 0)" ? "white" : scale.backgroundColor
  }));
  const styled = (from, to) => {
    const style = getComputedStyle(from);
    for (const name of ["fill", "stroke", "font-size", "font-family", "font-weight"])
      if (to.tagName === "text" || !name.startsWith("font")) to.setAttribute(name, style.getPropertyValue(name));
    to.removeAttribute("class");
    to.removeAttribute("style");
    [...from.children].forEach((child, i) => styled(child, to.children[i]));
  };
  for (const part of figure.querySelectorAll("svg, h3, p")) {
    const at = part.getBoundingClientRect();
    const style = getComputedStyle(part);
    const x = at.left - box.left;
    const y = at.top - box.top;
    if (!at.width) continue;
    if (part.tagName !== "svg") {
      out.append(
          el("text", {
            x,
            y: y + .8 * at.height,
            fill: style.color,
            "font-size": style.fontSize,
            "font-family": style.fontFamily,
            "font-weight": style.fontWeight
          },
             part.textContent));
      continue;
    }
    const copy = part.cloneNode(true);
    styled(part, copy);
    for (const [k, v] of Object.entries({x, y, width: at.width, height: at.height})) copy.setAttribute(k, v);
    out.append(copy);
  }
  return out;
}
// The numbers of a figure: a row for each point.
function figureCsv(figure) {
  const quoted = v => {
    if (v === undefined || v === null) return "";
    return /[",\n]/.test(v) ? `"${String(v).replace(/"/g, '""')}"` : String(v);
  };
  const rows = [["panel", "kind", "series", "x", "y", "to_x", "to_y", "text"]];
  for (const svg of figure.querySelectorAll("svg")) {
    const title = svg.parentElement.querySelector("h3");
    for (const l of svg.layers)
      for (const p of l.points)
        rows.push([title ? title.textContent : "", l.kind, l.name, ...Array.from({length: 5}, (_, i) => p[i])]);
  }
  return rows.map(r => r.map(quoted).join(",") + "\n").join("");
}
function download(name, type, content) {
  const link =
      el("a",
         {download: name, href: URL.createObjectURL(content instanceof Blob ? content : new Blob([content], {type}))});
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1e4);
}
function savePng(figure) {
  const svg = figureSvg(figure);
  const image = new Image();
  const canvas = el("canvas", {width: 2 * svg.getAttribute("width"), height: 2 * svg.getAttribute("height")});
  image.onload = () => {
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob(blob => download(figure.id + ".png", "image/png", blob));
  };
  image.src = "data:image/svg+xml," + encodeURIComponent(new XMLSerializer().serializeToString(svg));
}
// Buttons above each figure.
function addTools() {
  const kinds = {
    SVG: f => download(f.id + ".svg", "image/svg+xml", figureSvg(f).outerHTML),
    PNG: savePng,
    CSV: f => download(f.id + ".csv", "text/csv", figureCsv(f))
  };
  for (const figure of document.querySelectorAll(".figure"))
    figure.before(el("div", {class: "tools"}, ...Object.entries(kinds).map(([name, save]) => {
      const button = el("button", {type: "button", title: `save this figure as ${name}`}, name);
      button.addEventListener("click", () => save(figure));
      return button;
    })));
}
