"use strict";
// Draws the report from the JSON in #data. No library, no network.
const data = JSON.parse(document.getElementById("data").textContent);
const recipes = [...new Set(data.runs.map(r => r.recipe))];
const color = name => `var(--c${recipes.indexOf(name) % 10})`;
// More recipes than colours: the second ten are dashed, the third dotted.
const dash = name => ["none", "8 4", "2 4"][Math.floor(recipes.indexOf(name) / 10) % 3];
const dashClass = name => ["", "dashed", "dotted"][Math.floor(recipes.indexOf(name) / 10) % 3];
const hidden = new Set();
const shown = () => recipes.filter(r => !hidden.has(r));
const runsOf = name => data.runs.filter(r => r.recipe === name);
const finite = x => typeof x === "number" && isFinite(x);
const mean = xs => { const f = xs.filter(finite); return f.length ? f.reduce((a, b) => a + b, 0) / f.length : NaN; };
const bytes = b => b >= 2 ** 20 ? (b / 2 ** 20).toFixed(1) + " MiB" : (b / 1024).toFixed(0) + " KiB";
const num = (x, d) => finite(x) ? x.toFixed(d) : "–";
const percent = (x, d) => finite(x) ? num(x, d) + " %" : "–";
// A share that is lost: 0 stands for none alone.
const lostText = x => x === 0 ? "0 %" : x < 5e-4 ? "< 0.001 %" : percent(x, 3);
// 2 to the power of e; e may be a fraction.
const power = e => "2" + String(e).replace(/[-.0-9]/g, c => ({ "-": "⁻", ".": "·" })[c] || "⁰¹²³⁴⁵⁶⁷⁸⁹"[c]);
const categories = ["parameters", "masters", "casts", "gradients", "optimizer", "activations", "workspace"];
const castRoles = ["activation", "weight", "error", "weight gradient"];

function el(tag, attributes = {}, ...children) {
  const svg = ["svg", "g", "path", "line", "rect", "text", "circle", "title"].includes(tag);
  const e = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
  for (const c of children) e.append(c);
  return e;
}

const tip = el("div", { id: "tip" });
document.body.append(tip);
function hover(e, text) {
  e.addEventListener("pointermove", p => {
    tip.textContent = text;
    tip.style.display = "block";
    tip.style.left = Math.min(p.clientX + 12, innerWidth - tip.offsetWidth - 8) + "px";
    tip.style.top = p.clientY + 14 + "px";
  });
  e.addEventListener("pointerleave", () => { tip.style.display = "none"; });
  return e;
}

// About n round numbers from low to high.
function roundTicks(low, high, n) {
  const rough = (high - low) / n || 1, tens = 10 ** Math.floor(Math.log10(rough));
  const every = [1, 2, 5, 10].map(k => k * tens).find(s => s >= rough * .999);
  const ticks = [];
  for (let t = Math.ceil(low / every - 1e-9); t * every <= high + 1e-9; t++) ticks.push(+(t * every).toPrecision(12));
  return ticks;
}

// An SVG as wide as its place, so that text keeps its size on a phone.
function canvas(id, height, margin) {
  const place = typeof id === "string" ? document.getElementById(id) : id;
  const old = place.querySelector("svg");
  if (old) old.remove();
  const width = Math.max(260, place.clientWidth - 18);
  const svg = el("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  place.append(svg);
  return { svg, width, height, left: margin.left, right: width - margin.right, top: margin.top, bottom: height - margin.bottom };
}
const linear = (a, b, p, q) => x => p + (x - a) / (b - a || 1) * (q - p);

function yAxis(c, ticks, y, format) {
  for (const t of ticks) {
    c.svg.append(el("line", { class: "axis", x1: c.left, x2: c.right, y1: y(t), y2: y(t) }));
    c.svg.append(el("text", { x: c.left - 6, y: y(t) + 4, "text-anchor": "end" }, format(t)));
  }
}
function xAxis(c, max, x, label) {
  const step = 10 ** Math.floor(Math.log10(max / 2 || 1));
  const every = [1, 2, 5, 10].map(k => k * step).find(s => max / s <= (c.width < 500 ? 5 : 9)) || max;
  for (let t = 0; t <= max; t += every) c.svg.append(el("text", { x: x(t), y: c.bottom + 16, "text-anchor": "middle" }, String(t)));
  c.svg.append(el("text", { x: c.right, y: c.bottom + 32, "text-anchor": "end" }, label));
}
const line = (points, name) => el("path", { d: points.map((p, i) => (i ? "L" : "M") + p[0].toFixed(1) + " " + p[1].toFixed(1)).join(""), fill: "none", stroke: color(name), "stroke-dasharray": dash(name), "stroke-width": 2, "stroke-linejoin": "round" });

function summary() {
  const head = ["recipe", "verdict", "test accuracy", "test loss", "train loss", "ms/step", "peak memory", "scale", "skipped", "underflow", "overflow", "zero"];
  const table = document.getElementById("summary");
  table.replaceChildren(el("tr", {}, ...head.map(h => el("th", {}, h))));
  for (const name of recipes) {
    const rs = runsOf(name);
    const verdict = [...new Set(rs.map(r => r.verdict || r.status))].join("; ");
    const scale = mean(rs.map(r => r.final_scale)), star = rs.some(r => r.histograms.some(h => h.as_if)) ? "*" : "";
    const cells = [name, verdict, percent(100 * mean(rs.map(r => r.test_accuracy)), 2), num(mean(rs.map(r => r.test_loss)), 4), num(mean(rs.map(r => r.train_loss)), 4),
      num(mean(rs.map(r => r.ms_per_step)), 2), bytes(mean(rs.map(r => r.peak_bytes.total))), finite(scale) && scale !== 1 ? power(+Math.log2(scale).toPrecision(4)) : "–",
      num(mean(rs.map(r => r.skipped_steps)), 1), lostText(mean(rs.map(r => r.underflow_percent))) + star, lostText(mean(rs.map(r => r.overflow_percent))) + star,
      percent(mean(rs.map(r => r.zero_percent)), 1) + star];
    table.append(el("tr", {}, ...cells.map((c, i) => el("td", i === 1 && !/^(ok|baseline$|matches)/.test(verdict) ? { class: "bad" } : {}, c))));
  }
}

// Why runs went wrong: of a recipe's seeds the first that has findings.
function findings() {
  const place = document.getElementById("findings");
  for (const name of recipes) {
    const run = runsOf(name).find(r => (r.findings || []).length);
    if (!run) continue;
    place.append(el("h3", {}, `${name}: ${run.verdict}`));
    for (const f of run.findings) {
      const cure = f.remedy ? [el("br"), "Cure: " + f.remedy, ...(f.cure ? [el("details", {}, el("summary", {}, "the edit of the recipe"), el("pre", {}, JSON.stringify(f.cure, null, 1)))] : [])] : [];
      const tried = f.tried ? [`Tried: ${percent(100 * f.tried.accuracy, 2)}, ${f.tried.verdict}`] : [];
      place.append(el("div", { class: "finding" }, (f.step === null ? "" : `Step ${f.step}: `) + f.sentence + ` [${f.cause}]`, ...cure, ...tried));
    }
  }
  if (!place.children.length) document.getElementById("findings-section").remove();
}

// Mean over seeds step by step, then a running mean.
function lossCurve(name) {
  const rs = runsOf(name).filter(r => r.curve.step.length);
  if (!rs.length) return [];
  const n = Math.max(...rs.map(r => r.curve.step.length));
  const width = Math.max(1, Math.round(n / 60));
  const points = [];
  let window = [];
  for (let i = 0; i < n; i++) {
    const here = rs.map(r => r.curve.loss[i]).filter(x => x !== undefined);
    if (!here.every(finite)) break;  // diverged: the curve ends here
    window.push(mean(here));
    if (window.length > width) window.shift();
    const longest = rs.find(r => r.curve.step.length === n);
    points.push([longest.curve.step[i], mean(window)]);
  }
  return points;
}

function loss() {
  const curves = shown().map(r => [r, lossCurve(r)]).filter(([, p]) => p.length);
  const c = canvas("loss", 340, { left: 52, right: 12, top: 10, bottom: 40 });
  if (!curves.length) return;
  const all = curves.flatMap(([, p]) => p.map(q => q[1])).filter(v => v > 0);
  const low = Math.floor(Math.log10(Math.min(...all)) * 2) / 2, high = Math.ceil(Math.log10(Math.max(...all)) * 2) / 2;
  const maxStep = Math.max(...curves.flatMap(([, p]) => p.map(q => q[0])));
  const x = linear(0, maxStep, c.left, c.right), y = v => linear(low, high, c.bottom, c.top)(Math.log10(Math.max(v, 1e-12)));
  const ticks = [];
  for (let e = Math.ceil(low); e <= high; e++) ticks.push(10 ** e);
  if (ticks.length < 3) for (let e = Math.floor(low); e <= high; e++) for (const k of [2, 5]) { const t = k * 10 ** e; if (Math.log10(t) >= low && Math.log10(t) <= high) ticks.push(t); }
  yAxis(c, ticks, y, v => String(+v.toPrecision(2)));
  xAxis(c, maxStep, x, "step");
  for (const [name, p] of curves) {
    c.svg.append(hover(line(p.map(([s, v]) => [x(s), y(v)]), name), name));
    const end = p[p.length - 1];
    if (runsOf(name).some(r => r.status === "diverged")) c.svg.append(el("text", { x: x(end[0]), y: y(end[1]) + 5, "text-anchor": "middle", style: `fill:${color(name)};font-size:18px` }, "×"));
  }
}

function accuracy() {
  const names = shown();
  const c = canvas("accuracy", 30 * names.length + 48, { left: Math.min(150, 12 + 8 * Math.max(...recipes.map(r => r.length))), right: 64, top: 6, bottom: 34 });
  const good = data.runs.filter(r => finite(r.test_accuracy) && r.status === "ok").map(r => 100 * r.test_accuracy);
  const low = Math.max(0, Math.floor((good.length ? Math.min(...good) : 0) - 1)), high = 100;
  const x = linear(low, high, c.left, c.right);
  for (const t of roundTicks(low, high, c.width < 500 ? 3 : 6)) {
    c.svg.append(el("line", { class: "axis", x1: x(t), x2: x(t), y1: c.top, y2: c.bottom }));
    c.svg.append(el("text", { x: x(t), y: c.bottom + 16, "text-anchor": "middle" }, t + " %"));
  }
  names.forEach((name, i) => {
    const yy = c.top + 30 * i + 16;
    const values = runsOf(name).map(r => 100 * r.test_accuracy).filter(finite);
    c.svg.append(el("text", { class: "strong", x: c.left - 8, y: yy + 4, "text-anchor": "end" }, name));
    const m = mean(values);
    const at = v => Math.max(c.left, x(v));
    if (finite(m)) c.svg.append(el("line", { x1: at(m), x2: at(m), y1: yy - 10, y2: yy + 10, stroke: color(name), "stroke-width": 3 }));
    for (const v of values) c.svg.append(hover(el("circle", { cx: at(v), cy: yy, r: 5, fill: color(name), "fill-opacity": .7 }), `${name}: ${v.toFixed(2)} %`));
    c.svg.append(el("text", { class: "strong", x: c.right + 8, y: yy + 4 }, finite(m) ? (m < low ? "‹ " : "") + m.toFixed(2) : "–"));
  });
}

function scale() {
  const runs = shown().map(n => runsOf(n)[0]).filter(r => r.curve.scale.some(s => s !== 1));
  document.getElementById("scale-section").style.display = data.runs.some(r => r.curve.scale.some(s => s !== 1)) ? "" : "none";
  const c = canvas("scale", 260, { left: 52, right: 12, top: 14, bottom: 40 });
  if (!runs.length) return;
  const all = runs.flatMap(r => r.curve.scale).filter(s => s > 0);
  const low = Math.log2(Math.min(...all)) - 1, high = Math.log2(Math.max(...all)) + 1;
  const maxStep = Math.max(...runs.flatMap(r => r.curve.step));
  const x = linear(0, maxStep, c.left, c.right), y = s => linear(low, high, c.bottom, c.top)(Math.log2(s));
  const ticks = [];
  for (let e = Math.ceil(low); e <= high; e += Math.max(1, Math.round((high - low) / 6))) ticks.push(2 ** e);
  yAxis(c, ticks, y, s => power(+Math.log2(s).toPrecision(4)));
  xAxis(c, maxStep, x, "step");
  for (const r of runs) {
    const points = [];
    r.curve.scale.forEach((s, i) => {
      if (i && s !== r.curve.scale[i - 1]) points.push([x(r.curve.step[i]), y(r.curve.scale[i - 1])]);
      points.push([x(r.curve.step[i]), y(s)]);
    });
    c.svg.append(hover(line(points, r.recipe), r.recipe));
    r.curve.skipped.forEach((k, i) => { if (k) c.svg.append(hover(el("text", { x: x(r.curve.step[i]), y: y(r.curve.scale[i]) - 6, "text-anchor": "middle", style: `fill:${color(r.recipe)}` }, "×"), `${r.recipe}: step ${r.curve.step[i]} skipped`)); });
  }
}

function histograms() {
  const place = document.getElementById("histograms"), role = document.getElementById("role").value;
  const roles = role === "gradients" ? ["error", "weight gradient"] : [role];
  place.replaceChildren();
  for (const name of shown()) {
    const hs = runsOf(name).flatMap(r => r.histograms).filter(h => roles.includes(h.role) && h.counts.some(v => v));
    const lost = share(runsOf(name).flatMap(r => r.casts).filter(c => roles.includes(c.role)));
    const panel = el("div", { class: "panel" }, el("h3", {}, name));
    place.append(panel);
    if (!hs.length) { panel.append(el("p", {}, nothingIn(lost))); continue; }
    const h = hs[0];
    const counts = h.counts.map((_, i) => hs.reduce((a, other) => a + other.counts[i], 0));
    const one = hs.every(other => (other.format || {}).name === (h.format || {}).name) && h.format;
    panel.append(el("p", {}, `${h.as_if ? "as if in " : ""}${one ? one.name : "several formats"}: ${lostText(lost.underflow)} underflow, ${lostText(lost.overflow)} overflow`));
    const f = one || { zero_below_exponent: -999, min_normal_exponent: -999, max_exponent: 999 };  // nothing is shaded
    const total = counts.reduce((a, b) => a + b, 0);
    const first = Math.min(...counts.map((v, i) => v ? i + h.first_exponent : 99), f.zero_below_exponent < -60 ? -40 : -34), last = Math.max(...counts.map((v, i) => v ? i + h.first_exponent : -99), 17);
    const lo = Math.max(first, -60), hi = Math.min(last, 40) + 1;
    const c = canvas(panel, 170, { left: 8, right: 8, top: 8, bottom: 22 });
    const x = linear(lo, hi, c.left, c.right), top = Math.max(1, ...counts), y = v => linear(0, Math.sqrt(top), c.bottom, c.top + 14)(Math.sqrt(v));
    const shade = (a, b, fill) => { if (b > a) c.svg.append(el("rect", { x: x(a), y: c.top, width: x(b) - x(a), height: c.bottom - c.top, fill })); };
    const zeroBelow = Math.max(lo, Math.min(hi, f.zero_below_exponent)), normal = Math.max(lo, Math.min(hi, f.min_normal_exponent)), above = Math.min(hi, Math.max(lo, f.max_exponent + 1));
    shade(lo, zeroBelow, "var(--lost)");
    shade(zeroBelow, normal, "var(--sub)");
    shade(above, hi, "var(--lost)");
    counts.forEach((v, i) => {
      const e = i + h.first_exponent;
      if (!v || e < lo || e >= hi) return;
      c.svg.append(hover(el("rect", { x: x(e) + .5, y: y(v), width: Math.max(1, x(e + 1) - x(e) - 1), height: c.bottom - y(v), fill: e < zeroBelow ? "var(--bad)" : e < normal ? "var(--bar2)" : "var(--bar)" }),
        `${power(e)} to ${power(e + 1)}: ${(100 * v / total).toPrecision(3)} %`));
    });
    const label = (a, b, text) => { if (x(b) - x(a) > 7 * text.length) c.svg.append(el("text", { x: (x(a) + x(b)) / 2, y: c.top + 11, "text-anchor": "middle" }, text)); };
    label(lo, zeroBelow, "to zero");
    label(zeroBelow, normal, "subnormal");
    label(above, hi, "too large");
    for (let e = Math.ceil(lo / 16) * 16; e < hi; e += 16) c.svg.append(el("text", { x: x(e), y: c.bottom + 15, "text-anchor": "middle" }, power(e)));
  }
}

// Why there are no bars.
function nothingIn(lost) {
  if (!lost.elements) return "nothing is rounded here";
  if (!lost.overflow && !lost.nan) return `all of ${lost.elements} elements are zero`;
  return `all of ${lost.elements} elements are zero, Inf or NaN: ${lostText(lost.overflow)} overflow${lost.nan ? `, ${lost.nan} NaN` : ""}`;
}

// What rounding did to the elements of several rows of "casts" together, in percent.
function share(rows) {
  const sum = key => rows.reduce((a, c) => a + c.elements * c[key], 0) / elements;
  const elements = rows.reduce((a, c) => a + c.elements, 0);
  return { elements, underflow: sum("underflow_percent"), overflow: sum("overflow_percent"), nan: rows.reduce((a, c) => a + c.nan, 0) };
}

function casts() {
  const runs = runsOf(document.getElementById("cast-recipe").value);
  const all = runs.flatMap(r => r.casts);
  const layers = [...new Set(all.map(c => c.layer))];
  const kinds = Object.fromEntries(all.map(c => [c.layer, c.kind]));
  const table = document.getElementById("casts");
  table.replaceChildren(el("tr", {}, el("th", {}, "layer"), ...castRoles.map(role => el("th", {}, role))));
  for (const layer of layers) {
    table.append(el("tr", {}, el("td", {}, layer ? `${layer} ${kinds[layer] || ""}` : "(outside of layers)"), ...castRoles.map(role => {
      const s = share(all.filter(c => c.layer === layer && c.role === role));
      if (!s.elements) return el("td", {}, "–");
      return el("td", s.nan ? { class: "bad" } : {}, `${lostText(s.underflow)} / ${lostText(s.overflow)}${s.nan ? ` / ${s.nan} NaN` : ""}`);
    })));
  }
}

function memory() {
  const names = shown();
  const c = canvas("memory", 34 * names.length + 40, { left: Math.min(150, 12 + 8 * Math.max(...recipes.map(r => r.length))), right: 84, top: 4, bottom: 30 });
  const used = categories.filter(k => data.runs.some(r => r.peak_bytes[k] > 0));
  const sum = r => categories.reduce((a, k) => a + (r.peak_bytes[k] || 0), 0);
  const max = Math.max(...data.runs.map(sum), 1);
  const x = linear(0, max, c.left, c.right);
  names.forEach((name, i) => {
    const r = runsOf(name)[0], y = c.top + 34 * i + 6;
    c.svg.append(el("text", { class: "strong", x: c.left - 8, y: y + 15, "text-anchor": "end" }, name));
    let at = 0;
    for (const k of used) {
      const b = r.peak_bytes[k] || 0;
      if (b) c.svg.append(hover(el("rect", { x: x(at), y, width: Math.max(.5, x(at + b) - x(at)), height: 22, fill: `var(--c${categories.indexOf(k)})` }), `${name}, ${k}: ${bytes(b)}`));
      at += b;
    }
    c.svg.append(hover(el("line", { x1: x(r.peak_bytes.total), x2: x(r.peak_bytes.total), y1: y - 4, y2: y + 26, stroke: "var(--fg)", "stroke-width": 2 }), `${name}, peak of the sum: ${bytes(r.peak_bytes.total)}`));
    c.svg.append(el("text", { class: "strong", x: c.right + 6, y: y + 15 }, bytes(r.peak_bytes.total)));
  });
  for (let i = 0; i <= 3; i++) c.svg.append(el("text", { x: x(max * i / 3), y: c.bottom + 18, "text-anchor": "middle" }, bytes(max * i / 3)));
  document.getElementById("memory-legend").replaceChildren(...used.map(k => el("span", {}, el("i", { style: `background:var(--c${categories.indexOf(k)})` }), k)));
}

// What each format would lose of one run's numbers (core/quantize/what_if.h).
function whatIf() {
  const run = data.runs.find(r => r.what_if);
  if (!run) { document.getElementById("what-if-section").remove(); return; }
  document.getElementById("what-if-note").textContent =
    `The numbers of ${run.recipe}, seed ${run.seed}, at step ${run.what_if.step}, rounded to each format: as they are, times the power of two that keeps most of them, and times max / amax, which puts the largest on the format's largest value. ` +
    "To zero, subnormal and too large are shares of the elements that are not zero; too large ones become the largest value. " +
    "SQNR is the signal over the quantisation noise in dB, 10 log10(Σx² / Σ(x − q(x))²): one more bit of mantissa is worth 6. One scale serves all tensors of a role here.";
  const fraction = x => x === 0 ? "0" : +(100 * x).toPrecision(2) + " %", db = x => x === null ? "exact" : x.toFixed(1);
  const scaleText = s => s.startsWith("2^") ? power(s.slice(2)) : s;
  const groups = [["", 1], ["as it is", 4], ["best power of two", 4], ["max / amax", 2]];
  const head = ["format", "to zero", "subnormal", "too large", "SQNR", "scale", "to zero", "too large", "SQNR", "scale", "SQNR"];
  for (const role of run.what_if.roles.filter(r => r.elements)) {
    const rows = role.formats.map(f => [f.format, fraction(f.unscaled.underflow), fraction(f.unscaled.subnormal), fraction(f.unscaled.overflow), db(f.unscaled.sqnr_db),
      scaleText(f.best.scale), fraction(f.best.underflow), fraction(f.best.overflow), db(f.best.sqnr_db), scaleText(f.amax.scale), db(f.amax.sqnr_db)]);
    const about = `${role.elements} elements, ${role.zeros ? fraction(role.zeros / role.elements) : "none"} of them zero${role.not_finite ? `, ${role.not_finite} not finite` : ""}; the others from ${role.amin.toPrecision(3)} to ${role.amax.toPrecision(3)}. ` +
      (role.role === "weights" ? "" : `As gradients in f16 they would take the loss scale ${scaleText(role.loss_scale)}: the largest power of two at which none is too large, less ${role.headroom} for headroom.`);
    document.getElementById("what-if").append(el("h3", {}, role.role), el("p", { class: "note" }, about),
      el("div", { class: "scroll" }, el("table", {}, el("tr", {}, ...groups.map(([t, n]) => el("th", { colspan: n, class: "group" }, t))),
        el("tr", {}, ...head.map(h => el("th", {}, h))), ...rows.map(r => el("tr", {}, ...r.map(c => el("td", {}, c)))))));
  }
}

// The run of a recipe whose step has a shadow.
const shadowed = name => runsOf(name).find(r => r.step_errors);
const measures = {
  forward: ["Relative error of the layer's last result against f64, of one step after training: what its ops lose and what they inherit.", e => e.toExponential(0), 1e-7, 1],
  gradient: ["Relative error of the gradient that the layer's last product of backward gives, against f64.", e => e.toExponential(0), 1e-7, 1],
  angle: ["Angle between that gradient and the one in f64, in degrees: at 90 the step knows nothing of its direction.", e => e < .01 ? "<0.01" : e.toPrecision(2), .01, 90],
  share: ["What the layer's own errors do to the loss, in the loss's units: + raises it. Shares cancel.", e => (e > 0 ? "+" : "") + e.toExponential(0), 1e-7, 1e-1],
  zero: ["Elements that are not zero before rounding and zero after, in percent, over the sampled steps.", e => lostText(e).replace(" %", ""), .001, 100]
};
// The measure of each layer of a run; undefined: the layer has none.
function heatOf(run, measure) {
  const of = {};
  if (!measures[measure]) {
    for (const c of run.casts) if (c.role === measure) of[c.layer] = c.underflow_percent;
    return of;
  }
  for (const r of run.step_errors ? run.step_errors.rows : []) {
    if (measure === "share") of[r.layer] = (of[r.layer] || 0) + r.share;
    else if (measure === "forward") { if (r.phase === "forward") of[r.layer] = r.total; }
    else if (r.phase === "backward" && !/^(sum|cast)$/.test(r.op)) of[r.layer] = measure === "angle" ? Math.acos(Math.min(1, r.cosine)) * 180 / Math.PI : r.total;
  }
  return of;
}
// Layers against recipes.
function heat() {
  const names = shown(), measure = document.getElementById("heat-measure").value, [note, text, low, high] = measures[measure] || measures.zero;
  const columns = names.map(name => heatOf(shadowed(name) || runsOf(name)[0], measure));
  const order = [...new Set(data.runs.flatMap(r => [...(r.step_errors ? r.step_errors.rows : []), ...r.casts].map(c => c.layer)))];
  const layers = order.filter(l => columns.some(c => finite(c[l]) && c[l] !== 0));
  document.getElementById("heat-note").textContent = note + " The darker, the worse; on a log scale.";
  const cell = v => {
    if (!finite(v)) return el("td", {}, "–");
    const depth = v === 0 ? 0 : Math.max(0, Math.min(1, Math.log(Math.abs(v) / low) / Math.log(high / low)));
    return el("td", { class: "heat", style: `background:color-mix(in srgb, var(${v < 0 ? "--bar" : "--bad"}) ${(85 * depth).toFixed(0)}%, transparent)` }, v === 0 ? "0" : text(v));
  };
  document.getElementById("heat").replaceChildren(el("tr", {}, el("th", {}, "layer"), ...names.map(n => el("th", {}, n))),
    ...layers.map(l => el("tr", {}, el("td", {}, l || "outside of layers"), ...columns.map(c => cell(c[l])))));
}
// The ops of a step in order, in mean ulps on a log scale: a bar's lower part is the op's own error, the rest is
// inherited.
function lineage() {
  const run = shadowed(document.getElementById("lineage-recipe").value);
  if (!run) return;
  const e = run.step_errors, rows = e.rows.filter(r => finite(r.total_ulps) && r.total_ulps > 0);
  document.getElementById("lineage-note").textContent = `Ops of one step after training, from the first of forward to the last of backward. The height is the mean error in units in the last place of the result's format, on a log scale: the dark part is the op's own, the light part it inherits. ` +
    `Red bars raise the loss, blue ones lower it, grey ones do neither. The loss is ${e.loss.toPrecision(6)}, in f64 ${e.exact_loss.toPrecision(6)}; own errors explain ${(e.explained).toExponential(2)} of the difference of ${(e.loss - e.exact_loss).toExponential(2)}.`;
  const c = canvas("lineage", 300, { left: 52, right: 12, top: 14, bottom: 34 });
  const at = v => Math.log10(Math.max(v, 1e-3)), top = Math.max(1, ...rows.map(r => at(r.total_ulps))), y = linear(-3, top, c.bottom, c.top), x = linear(0, rows.length, c.left, c.right);
  const ticks = [];
  for (let t = -3; t <= top; t += Math.max(1, Math.ceil(top / 4))) ticks.push(t);
  yAxis(c, ticks, y, t => t < 0 ? "0." + "0".repeat(-t - 1) + "1" : t > 4 ? "1e" + t : String(10 ** t));
  const largest = Math.max(...rows.map(r => Math.abs(r.share)), 1e-30);
  rows.forEach((r, i) => {
    const own = Math.min(at(r.local_ulps), at(r.total_ulps)), fill = Math.abs(r.share) < 1e-3 * largest ? "var(--muted)" : r.share > 0 ? "var(--bad)" : "var(--bar)";
    const what = `${r.phase} ${r.op}${r.product ? " (" + r.product + ")" : ""}${r.layer ? " in " + r.layer : ""}\nown ${r.local_ulps.toPrecision(2)} ulps, in all ${r.total_ulps.toPrecision(2)}; relative ${r.local.toExponential(1)}, ${r.total.toExponential(1)}` + (r.share ? `\nmoves the loss by ${r.share.toExponential(2)}` : "");
    const bar = (from, to, opacity) => c.svg.append(hover(el("rect", { x: x(i) + .5, width: Math.max(1, x(i + 1) - x(i) - 1), y: y(to), height: Math.max(.5, y(from) - y(to)), fill, "fill-opacity": opacity }), what));
    bar(-3, own, .9);
    bar(own, at(r.total_ulps), .35);
  });
  const back = rows.findIndex(r => r.phase === "backward");
  c.svg.append(el("text", { x: c.left, y: c.bottom + 18 }, "forward"));
  if (back > 0) c.svg.append(el("line", { class: "axis", x1: x(back), x2: x(back), y1: c.top, y2: c.bottom + 20 }), el("text", { x: x(back) + 6, y: c.bottom + 18 }, "backward"));
}

function draw() { heat(); lineage(); loss(); accuracy(); scale(); histograms(); casts(); memory(); }

function start() {
  const first = data.runs[0] || {};
  const seeds = new Set(data.runs.map(r => r.seed)).size;
  const count = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;
  document.getElementById("subtitle").textContent =
    `${first.model} on ${first.data}, ${count(recipes.length, "recipe")}, ${count(seeds, "seed")}, ${count(first.epochs, "epoch")}. ` +
    "The same network, data and order of batches in every run; only the number formats differ.";
  document.title += `: ${first.model} on ${first.data}`;
  // a run that an earlier version finished tells nothing of these
  const settings = first.batch ? `Batches of ${first.batch}, ${first.optimizer}, learning rate ${first.lr}, on ${first.device}` : `On ${first.device}`;
  document.getElementById("what-ran").textContent = settings + "; the recipes as JSON";
  document.getElementById("definitions").textContent = JSON.stringify(recipes.map(name => runsOf(name)[0].definition).filter(d => d), null, 2);
  document.getElementById("footer").textContent = `Gradual ${data.version}. ` + Object.entries(data.machine).map(([k, v]) => `${k}: ${v}`).join(", ");
  document.getElementById("legend").replaceChildren(...recipes.map(name => {
    const b = el("button", { type: "button", "aria-pressed": "true" }, el("i", dashClass(name) ? { class: dashClass(name), style: `border-color:${color(name)}` } : { style: `background:${color(name)}` }), name);
    b.addEventListener("click", () => {
      hidden.has(name) ? hidden.delete(name) : hidden.add(name);
      b.setAttribute("aria-pressed", String(!hidden.has(name)));
      draw();
    });
    return b;
  }));
  const recipe = document.getElementById("cast-recipe");
  recipe.replaceChildren(...recipes.map(name => el("option", {}, name)));
  recipe.addEventListener("change", casts);
  document.getElementById("role").addEventListener("change", histograms);
  document.getElementById("heat-measure").addEventListener("change", heat);
  const studied = recipes.filter(shadowed), worst = studied.filter(n => n !== "fp32").sort((a, b) => mean(runsOf(a).map(r => r.test_accuracy)) - mean(runsOf(b).map(r => r.test_accuracy)))[0];
  const strip = document.getElementById("lineage-recipe");
  strip.replaceChildren(...studied.map(name => el("option", name === worst ? { selected: "" } : {}, name)));
  strip.addEventListener("change", lineage);
  if (!studied.length) for (const id of ["heat-section", "lineage-section"]) document.getElementById(id).style.display = "none";
  summary();
  findings();
  whatIf();
  draw();
}
let timer;
addEventListener("resize", () => { clearTimeout(timer); timer = setTimeout(draw, 120); });
start();
