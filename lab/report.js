// Fills the report from the JSON in #data.
const data = JSON.parse(byId("data").textContent);
const recipes = [...new Set(data.runs.map(r => r.recipe))];
// More recipes than colours: the second ten are dashed, the third dotted.
const colorOf = i => `var(--c${i % 10})`;
const dashOf = i => ["none", "8 4", "2 4"][Math.floor(i / 10) % 3];
const color = name => colorOf(recipes.indexOf(name));
const dash = name => dashOf(recipes.indexOf(name));
const hidden = new Set();
const shown = () => recipes.filter(r => !hidden.has(r));
const runsOf = name => data.runs.filter(r => r.recipe === name);
const chosen = id => byId(id).value;
const mean = xs => {
  const f = xs.filter(finite);
  return f.length ? f.reduce((a, b) => a + b, 0) / f.length : NaN;
};
const bytes = b => b >= 2 ** 20 ? (b / 2 ** 20).toFixed(1) + " MiB" : (b / 1024).toFixed(0) + " KiB";
const num = (x, d) => finite(x) ? x.toFixed(d) : "–";
const percent = (x, d) => finite(x) ? num(x, d) + "%" : "–";
// What the runs are measured by: a share of 0 to 1 reads as percent. A file of an earlier version has the accuracy.
const metric = (data.runs[0] || {}).metric || {name: "accuracy", unit: "%", better: "higher", share: true};
const isShare = metric.share;
const valueOf = r => {
  const value = metric.name === "accuracy" ? r.test_accuracy : r.test_metric;
  return finite(value) ? (isShare ? 100 : 1) * value : NaN;  // null, of a run that diverged, is no 0
};
function valueText(value) {
  if (!finite(value)) return "–";
  if (isShare) return percent(value, 2);
  return String(+value.toPrecision(4)) + (metric.unit ? " " + metric.unit : "");
}
// A share that is lost, in percent. "0%" stands for none at all; a tiny share is not rounded to it.
function lostText(share) {
  if (share === 0) return "0%";
  return share < 5e-4 ? "< 0.001%" : percent(share, 3);
}
// 2 to the power of e; e may be a fraction.
const power = e => "2" + String(e).replace(/[-.0-9]/g, c => ({"-": "⁻", ".": "·"})[c] || "⁰¹²³⁴⁵⁶⁷⁸⁹"[c]);
const powerOf = v => power(+Math.log2(v).toPrecision(4));
function short(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size >= 1e4 || size < 1e-3 ? value.toExponential(1).replace(".0e", "e") : String(+value.toPrecision(3));
}
const signed = v => (v > 0 ? "+" : "") + short(v);
const castRoles = ["activation", "weight", "error", "weight gradient"];
const cells = (tag, texts) => texts.map(t => t instanceof Element ? t : el(tag, {}, t));
const tableOf = (head, rows) => [el("tr", {}, ...cells("th", head)), ...rows.map(r => el("tr", {}, ...cells("td", r)))];

// "4 (Conv2d)"; a long path stands alone.
const kindOf = Object.fromEntries(data.runs.flatMap(r => r.casts).map(c => [c.layer, c.kind]));
const layerText = layer => {
  if (!layer) return "outside";
  const text = kindOf[layer] ? `${layer} (${kindOf[layer]})` : layer;
  return text.length <= 26 ? text : layer;
};

// What rounding did to the elements of several rows of "casts" together, in percent.
function share(rows) {
  const elements = rows.reduce((a, c) => a + c.elements, 0);
  const sum = key => rows.reduce((a, c) => a + c.elements * c[key], 0) / elements;
  return {
    elements,
    underflow: sum("underflow_percent"),
    overflow: sum("overflow_percent"),
    nan: rows.reduce((a, c) => a + c.nan, 0)
  };
}
// The layer in which most activations or weights are clipped or overflow.
function clipped(runs) {
  const worst = runs.flatMap(r => r.casts)
                    .filter(c => c.role === "activation" || c.role === "weight")
                    .sort((a, b) => b.overflow_percent - a.overflow_percent)[0];
  if (!worst) return "–";
  if (!worst.overflow_percent) return lostText(0);
  return `${lostText(worst.overflow_percent)}, ${worst.role} of ${worst.layer ? layerText(worst.layer) : "no layer"}`;
}

// Of a run that has something to explain, or was not judged to the end.
function isBad(run) {
  const {kind, fails} = run.judgement;
  return kind === "unjudged" ? run.status !== "ok" : fails || kind === "interrupted";
}

function summary() {
  const sends = data.runs.some(r => r.bytes_sent > 0);
  const head = [
    "recipe", "verdict", `test ${metric.name}`, "test loss", "train loss", "ms/step", "peak memory", "scale", "skipped",
    "underflow", "overflow", "zero", "clipped", ...(sends ? ["sent per step"] : [])
  ];
  const rows = recipes.map(name => {
    const rs = runsOf(name);
    const of = key => mean(rs.map(r => r[key]));
    const star = rs.some(r => r.histograms.some(h => h.as_if)) ? "*" : "";
    const verdict = [...new Set(rs.map(r => r.verdict || r.status))].join("; ");
    const scale = of("final_scale");
    return [
      name, el("td", rs.some(isBad) ? {class: "bad"} : {}, verdict), valueText(mean(rs.map(valueOf))),
      num(of("test_loss"), 4), num(of("train_loss"), 4), num(of("ms_per_step"), 2),
      bytes(mean(rs.map(r => r.peak_bytes.total))), finite(scale) && scale !== 1 ? powerOf(scale) : "–",
      num(of("skipped_steps"), 1), lostText(of("underflow_percent")) + star, lostText(of("overflow_percent")) + star,
      percent(of("zero_percent"), 1) + star, clipped(rs),
      ...(sends ? [bytes(mean(rs.map(r => r.bytes_sent / r.steps)))] : [])
    ];
  });
  byId("summary").replaceChildren(...tableOf(head, rows));
  sortable(byId("summary"));
}

// The row's recipe minus the column's, with the interval that holds for all pairs together.
function pairs() {
  const scale = isShare ? 100 : 1;
  const digits = isShare ? 2 : 3;
  const found = {};
  for (const p of data.pairs || []) {
    found[p.first + "\n" + p.second] = [1, p];
    found[p.second + "\n" + p.first] = [-1, p];
  }
  const cell = (row, column) => {
    const [sign, p] = found[row + "\n" + column] || [];
    if (!p) return "–";
    const mean = sign * scale * p.difference.mean;
    const half = scale * p.half_interval_together;
    const better = sign > 0 ? p.share_of_seeds_better : 1 - p.share_of_seeds_better;
    const text = (mean < 0 ? "−" : "+") + Math.abs(mean).toFixed(digits);
    return el(
        "td", {
          class: p.holds_together ? "holds" : "",
          title: `${row} is better in ${(100 * better).toFixed(0)}% of ${p.seeds} seeds; p ${short(p.p)}`
        },
        text, el("small", {}, finite(half) ? `± ${half.toFixed(digits)}` : ""));
  };
  const rows = recipes.map(row => [row, ...recipes.map(column => cell(row, column))]);
  byId("pairs").replaceChildren(...tableOf(["recipe", ...recipes], rows));
}

// "from step 312 on as fp32: gradient_to_noise was 1.7, below 1.73".
function phaseText(p) {
  const what = p.modules.length ? `${p.modules.join(", ")} as` : "as";
  const why = p.quantity ? `: ${p.quantity} was ${short(p.value)}, below ${short(p.below)}` : "";
  return `from step ${p.step} on ${what} ${p.recipe}${why}`;
}
// The phases of schedules that began, a line for each run.
function phases() {
  const runs = data.runs.filter(r => (r.phases || []).length);
  hideUnless(runs.length, "phases-section");
  byId("phases").replaceChildren(
      ...runs.map(r => el("li", {}, `${r.recipe}, seed ${r.seed}: ${r.phases.map(phaseText).join("; ")}`)));
}

// The cure of a finding with its edit, as elements.
function cureOf(f) {
  if (!f.remedy) return [];
  const edit = f.cure ?
      [el("details", {}, el("summary", {}, "the edit of the recipe"), el("pre", {}, JSON.stringify(f.cure, null, 1)))] :
      [];
  return [el("br"), "Cure: " + f.remedy, ...edit];
}
function triedText({accuracy, metric, verdict}) {
  return `Tried: ${finite(accuracy) ? percent(100 * accuracy, 2) : num(metric, 4)}, ${verdict}`;
}
// Why runs went wrong: of a recipe's seeds the first that has findings.
function findings() {
  const place = byId("findings");
  for (const name of recipes) {
    const run = runsOf(name).find(r => (r.findings || []).length);
    if (!run) continue;
    place.append(el("h3", {}, `${name}: ${run.verdict}`));
    for (const f of run.findings) {
      const weight =
          finite(f.undone) ? `. Undone in a trial: ${percent(100 * Math.max(0, f.undone), 0)} of the failure.` : "";
      const cause = f.operands?.length ? `${f.cause} of ${f.operands.join(", ")}` : f.cause;
      place.append(el("div", {class: "finding"},
                      (f.step === null ? "" : `Step ${f.step}: `) + f.sentence + ` [${cause}]` + weight,
                      ...cureOf(f), ...(f.tried ? [triedText(f.tried)] : [])));
    }
  }
  if (!place.children.length) byId("findings-section").remove();
}

// The recipe that the others are compared with.
const baseline = "fp32";
// The run of a recipe whose step has a shadow.
const shadowed = name => runsOf(name).find(r => r.step_errors);
// The row of a layer's backward product: "wgrad" (the weight's gradient) or "dgrad" (the input's gradient).
const product = (rows, name) => rows.find(r => r.phase === "backward" && r.product === name);
const lastForward = rows => rows.filter(r => r.phase === "forward").pop();
const errorOf = f => rows => {
  const r = f(rows);
  return r && r.total;
};
const cosineOf = f => rows => {
  const r = f(rows);
  return r && r.cosine;
};
const castOf = role => (_, casts) => {
  const c = casts.find(c => c.role === role);
  return c && c.underflow_percent;
};
const lost = "Share of the elements that rounding makes zero, over the sampled steps.";
const cosine = "1: the direction that f64 gives; 0: no part of it.";
const error = v => v.toExponential(0);
const logDepth = (low, high) => v => v === 0 ? 0 : Math.log(Math.abs(v) / low) / Math.log(high / low);
// Of a number of a layer: `text` shows it, `depth` is the shade of its cell, from 0 to 1.
const errors = {text: error, depth: logDepth(1e-7, 1)};
const zeros = {text: v => lostText(v).replace("%", "").replace("< ", "<"), depth: logDepth(.001, 100)};
const angles = {text: v => v.toFixed(3), depth: v => logDepth(1e-6, 1)(Math.max(0, 1 - v))};
// What a layer's cell may show: its title in the menu, how to read it, and `of`, its number from the layer's rows of
// the shadow and of "casts". hasGood: a negative number is a good one.
const measures = {
  forward: {
    title: "error of the layer's result",
    note: "Relative error against f64 of the last op of the layer's forward.",
    of: errorOf(lastForward),
    ...errors
  },
  wgrad: {
    title: "error of the weight gradient",
    note: "Relative error against f64 of the product that gives the layer's weight gradient.",
    of: errorOf(r => product(r, "wgrad")),
    ...errors
  },
  dgrad: {
    title: "error of the input's gradient",
    note: "Relative error against f64 of the gradient that the layer hands back.",
    of: errorOf(r => product(r, "dgrad")),
    ...errors
  },
  "cosine of forward": {
    title: "cosine: the layer's result",
    note: "Cosine of the angle between the layer's result and that in f64. " + cosine,
    of: cosineOf(lastForward),
    ...angles
  },
  "cosine of wgrad": {
    title: "cosine: weight gradient",
    note: "Cosine of the angle between the weight gradient and that in f64. " + cosine,
    of: cosineOf(r => product(r, "wgrad")),
    ...angles
  },
  "cosine of dgrad": {
    title: "cosine: the input's gradient",
    note: "Cosine of the angle between the gradient that the layer hands back and that in f64. " + cosine,
    of: cosineOf(r => product(r, "dgrad")),
    ...angles
  },
  share: {
    title: "share of the error in the loss",
    note: "What the layer's own errors do to the loss, in the loss's units: + (red) raises it, - (blue) lowers it.",
    of: rows => rows.reduce((a, r) => a + r.share, 0),
    text: v => (v > 0 ? "+" : "") + error(v),
    depth: logDepth(1e-7, .1),
    hasGood: true
  },
  ...Object.fromEntries(
      castRoles.map(role => [role, {title: `${role}s that become zero, %`, note: lost, of: castOf(role), ...zeros}]))
};

// Layers against recipes.
function heat() {
  const names = shown();
  const {note, of, text, depth, hasGood} = measures[chosen("heat-measure")];
  const runs = names.map(n => shadowed(n) || runsOf(n)[0]);
  const rowsOf = r => r.step_errors ? r.step_errors.rows : [];
  const order = [...new Set(data.runs.flatMap(r => [...rowsOf(r), ...r.casts].map(c => c.layer)))];
  const value = (run, layer) => {
    const rows = rowsOf(run).filter(r => r.layer === layer);
    const casts = run.casts.filter(c => c.layer === layer);
    return rows.length + casts.length ? of(rows, casts) : undefined;
  };
  const numberText = v => {
    if (!finite(v)) return "–";
    return v === 0 ? "0" : text(v);
  };
  const layers = order.filter(l => runs.some(r => value(r, l)));
  byId("heat-note").textContent =
      note + " The stronger its colour, the worse a cell; the scale is logarithmic. A dash: no such number.";
  const shades = [];
  const texts = [];
  layers.forEach((l, i) => runs.forEach((run, k) => {
    const v = value(run, l);
    const deep = finite(v) ? Math.max(0, Math.min(1, depth(v))) : 0;
    if (deep > 0)
      shades.push([
        k, i, k + 1, i + 1, `${names[k]}, layer ${l}: ${v}`,
        v < 0 && hasGood ? "var(--bar)" : "var(--bad)", .85 * deep
      ]);
    // on a deep shade the digits have the page's colour, where that contrasts more
    const deepFrom = matchMedia("(prefers-color-scheme: dark)").matches ? .75 : .88;
    texts.push([k + .5, i + .5, , , numberText(v), , deep > deepFrom ? "var(--bg)" : ""]);
  }));
  plot(byId("heat"), {
    x: {names},
    y: {names: layers.map(layerText), row: 28},
    minWidth: 90 + 58 * names.length,
    layers: [
      {kind: "bars", name: "shade", gap: 1, points: shades}, {kind: "texts", name: "value", strong: true, points: texts}
    ]
  });
}

// Own errors that point one way: of numbers that are all too small or too large, and of a shifted mean.
function biasText(r) {
  const sure = (value, half) => finite(value) && Math.abs(value) > (half || 0);
  return (sure(r.gain, r.gain_interval) ?
              `\nnumbers ${(100 * Math.abs(r.gain)).toPrecision(2)}% too ${r.gain < 0 ? "small" : "large"}` :
              "") +
      (sure(r.bias, r.bias_interval) ? `\nmean shifted by ${signed(r.bias)} of their size` : "");
}

// The ops of a step in order, in mean ulps: a bar's dark part is the op's own error, the light part is inherited.
function lineage() {
  const run = shadowed(chosen("lineage-recipe"));
  const log = chosen("lineage-axis") === "logarithmic";
  if (!run) return;
  const e = run.step_errors;
  const rows = e.rows.filter(r => finite(r.total_ulps) && r.total_ulps > 0);
  const inherited = r => r.inherited_ulps || Math.max(0, r.total_ulps - r.local_ulps);
  const whole = r => r.local_ulps + inherited(r);
  const heights = rows.map(whole).sort((a, b) => a - b);
  const most = heights[heights.length - 1];
  const high = log ? most : Math.min(most, 2 * heights[Math.floor(.8 * (heights.length - 1))]);
  const largest = Math.max(...rows.map(r => Math.abs(r.share)), 1e-30);
  byId("lineage-note").textContent =
      "Each bar is an op of one step after training: strong is the error it makes itself, faint the error that its " +
      "inputs bring, as means in ulps (the distance to the next number of the result's dtype). " +
      `Red raises the loss, blue lowers it, grey does neither; an arrow stands on a bar that goes on. The loss is ${
          e.loss.toPrecision(6)}, in f64 ${e.exact_loss.toPrecision(6)}: a difference of ${
          signed(e.loss - e.exact_loss)}, of which own errors explain ${signed(e.explained)}.`;
  const own = [];
  const brought = [];
  const cut = [];
  const low = log ? 1e-3 : 0;
  rows.forEach((r, i) => {
    let fill = "var(--muted)";
    if (Math.abs(r.share) >= 1e-3 * largest) fill = r.share > 0 ? "var(--bad)" : "var(--bar)";
    const what =
        `${r.phase} ${r.op}${r.product ? " (" + r.product + ")" : ""}${r.layer ? " in " + r.layer : ""}\nown ${
            short(r.local_ulps)} ulps, inherited ${short(inherited(r))}, in all ${short(r.total_ulps)}\nrelative ${
            r.local.toExponential(1)} own, ${r.total.toExponential(1)} in all` +
        biasText(r) +
        (r.share ? `\nmoves the loss by ${signed(r.share)}` : "");
    const floor = Math.max(low, r.local_ulps);
    own.push([i, low, i + 1, Math.min(high, floor), what, fill, .9]);
    brought.push([i, Math.min(high, floor), i + 1, Math.min(high, Math.max(low, whole(r))), what, fill, .35]);
    if (whole(r) > high * 1.001) cut.push([i + .5, high, , , "▲"]);
  });
  const names = rows.map((r, i) => i && rows[i - 1].layer === r.layer ? null : [i, r.layer]).filter(n => n && n[1]);
  const back = rows.findIndex(r => r.phase === "backward");
  plot(byId("lineage"), {
    height: 320,
    y: {low, high, log: log && 10, label: "ulps", format: short},
    x: {
      low: 0,
      high: rows.length,
      label: `layers; forward, then backward from the dashed line`,
      ticks: names.map(n => n[0] + .5),
      format: t => rows[t - .5].layer
    },
    layers: [
      {kind: "bars", name: "own", gap: .5, points: own}, {kind: "bars", name: "inherited", gap: .5, points: brought},
      {kind: "texts", name: "cut", points: cut}, {
        kind: "marks",
        name: "backward",
        color: "var(--muted)",
        points: back > 0 ? [[back, , , , "backward begins"]] : []
      }
    ]
  });
}

// Each seed's curve, smoothed by a running mean; f gives the value at index i of a run, or nothing.
function smoothed(run, f) {
  const width = Math.max(1, Math.round(run.curve.step.length / 60));
  const points = [];
  let window = [];
  for (let i = 0; i < run.curve.step.length; i++) {
    const v = f(run, i);
    if (!finite(v)) break;  // diverged: the curve ends here
    window = [...window, v].slice(-width);
    points.push([run.curve.step[i], mean(window)]);
  }
  return points;
}
// Where phases of a schedule began in a recipe's first seed.
function switches(name) {
  const points = (runsOf(name)[0].phases || []).map(p => [p.step, , , , `${name}: ${phaseText(p)}`]);
  return {kind: "marks", name: name + " changed", color: color(name), points};
}
// Where a recipe's first seed went wrong: skipped steps, the first loss that is not finite, steps of findings.
function troubles(name) {
  const run = runsOf(name)[0];
  const steps = new Map();
  const add = (step, what) => steps.set(step, [...(steps.get(step) || []), what]);
  run.curve.skipped.forEach((s, i) => {
    if (s) add(run.curve.step[i], "skipped");
  });
  const first = run.curve.loss.findIndex(l => !finite(l));
  if (first >= 0) add(run.curve.step[first], "first loss that is not finite");
  for (const f of run.findings || [])
    if (f.step !== null) add(f.step, f.sentence);
  return {
    kind: "marks",
    name: name + " went wrong",
    color: color(name),
    points: [...steps].slice(0, 200).map(
        ([step, whats]) => [step, , , , `${name}, step ${step}: ${whats.join("; ")}`.replace(/(.{70}[^ ]*) /g, "$1\n")])
  };
}

function loss() {
  const view = chosen("loss-view");
  const difference = view === "difference";
  const layers = [];
  const base = run => difference ? data.runs.find(r => r.recipe === baseline && r.seed === run.seed) : null;
  for (const name of shown()) {
    const runs = runsOf(name).filter(r => r.curve.step.length && (!difference || base(r)));
    const curves = runs.map(
        r => smoothed(
            r,
            (run, i) => difference && finite(run.curve.loss[i]) ? run.curve.loss[i] - base(run).curve.loss[i] :
                                                                  run.curve.loss[i]));
    const n = Math.min(...curves.map(c => c.length));
    if (!curves.length || (!n && !difference)) continue;
    const at = i => curves.map(c => c[i][1]);
    const steps = [...Array(n).keys()];
    layers.push({
      kind: "band",
      name,
      color: color(name),
      points: steps.map(i => [curves[0][i][0], Math.min(...at(i)), curves[0][i][0], Math.max(...at(i))])
    });
    layers.push({
      kind: "line",
      name,
      color: color(name),
      dash: dash(name),
      points: steps.map(i => [curves[0][i][0], mean(at(i))])
    });
    if (n && runs.some(r => r.status === "diverged"))
      layers.push({kind: "texts", name, color: color(name), points: [[curves[0][n - 1][0], mean(at(n - 1)), , , "×"]]});
    layers.push(troubles(name), switches(name));
  }
  const zoom = overSteps.zoom || [0, Infinity];
  const values = layers.filter(l => l.kind === "line")
                     .flatMap(l => l.points.filter(p => p[0] >= zoom[0] && p[0] <= zoom[1]).map(p => p[1]))
                     .sort((a, b) => a - b);
  if (!values.length) return byId("loss").replaceChildren();
  const log = view === "logarithmic";
  const least = values.find(v => v > 0) || 1e-3;
  let low = log ? least / 1.2 : 0;
  let high = 1.05 * values[values.length - 1];
  if (difference) {
    // The axis holds all but the largest differences, those of a curve that leaves.
    const sizes = values.map(Math.abs).sort((a, b) => a - b).slice(0, Math.ceil(.85 * values.length));
    high = 1.2 * Math.max(...sizes) || 1;
    low = -high;
  }
  plotSteps(byId("loss"), {
    height: 380,
    y: {
      low,
      high,
      log: log && 10,
      label: difference ? "loss minus fp32's" : "training loss",
      format: difference ? signed : short
    },
    layers
  });
}

// The metric of each run and its means by recipe, between the ends of the axis. text: of a number.
function plotMetric({low, high, right, text, ...axis}) {
  const names = shown();
  const at = v => Math.min(high, Math.max(low, v));
  const beyond = v => {  // the end of the axis that a number lies beyond
    if (v < low) return "‹ ";
    return v > high ? "› " : "";
  };
  const dots = [];
  const bars = [];
  const texts = [];
  names.forEach((name, i) => {
    const values = runsOf(name).map(valueOf).filter(finite);
    const m = mean(values);
    values.forEach(v => dots.push([at(v), i + .5, , , `${name}: ${text(v)}`, color(name)]));
    if (finite(m))
      bars.push([at(m), i + .2, at(m) + .004 * (high - low), i + .8, `${name}: mean ${text(m)}`, color(name)]);
    texts.push([high, i + .5, , , beyond(m) + (isShare ? num(m, 2) : text(m)), "start"]);
  });
  const c = plot(byId("accuracy"), {
    x: {low, high, grid: true, ...axis},
    y: {names, right},
    layers: [
      {kind: "bars", name: "mean", points: bars}, {kind: "dots", name: "seed", points: dots},
      {kind: "texts", name: "mean", strong: true, points: texts}
    ]
  });
  c.svg.style.overflow = "visible";
}

// The axis holds all but the worst fifth of the runs, which may be far away; that of a share ends at 100%.
function accuracy() {
  const good = data.runs.filter(r => finite(valueOf(r)) && r.status === "ok").map(valueOf).sort((a, b) => a - b);
  const cut = Math.floor(good.length / 5);
  if (isShare)
    return plotMetric({
      low: Math.max(0, Math.floor((good.length ? good[cut] : 0) - 2)),
      high: 100,
      right: 70,
      text: v => v.toFixed(2) + "%",
      label: metric.name === "accuracy" ? "right answers on the test data" : metric.name + " on the test data",
      format: t => t + "%"
    });
  if (!good.length) return byId("accuracy").replaceChildren();
  const from = metric.better === "lower" ? good[0] : good[cut];
  const to = metric.better === "lower" ? good[good.length - 1 - cut] : good[good.length - 1];
  const margin = .1 * (to - from) || .1 * Math.abs(to) || 1;
  plotMetric({
    low: from - margin,
    high: to + margin,
    right: 84,
    text: valueText,
    label: `${metric.name} on the test data, ${metric.better} is better`,
    format: short
  });
}

function pareto() {
  const all = shown()
                  .map(name => ({
                         name,
                         bits: runsOf(name)[0].operand_bits,
                         losses: runsOf(name).map(r => r.test_loss).filter(finite)
                       }))
                  .filter(p => finite(p.bits) && p.losses.length);
  byId("pareto-section").style.display = all.length > 1 ? "" : "none";
  if (all.length < 2) return;
  for (const p of all) p.loss = mean(p.losses);
  const front =
      all.filter(
             p => !all.some(
                 o => o !== p && o.bits <= p.bits && o.loss <= p.loss && (o.bits < p.bits || o.loss < p.loss)))
          .sort((a, b) => a.bits - b.bits);
  const losses = all.flatMap(p => p.losses);
  const low = Math.min(...losses) / 1.2;
  const high = Math.max(...losses) * 1.2;
  const best = [...all].sort((a, b) => a.loss - b.loss);
  const line = front.map(p => [p.bits, p.loss]);
  const fewest = .9 * Math.min(...all.map(p => p.bits));
  const most = 1.6 * Math.max(...all.map(p => p.bits));
  plot(byId("pareto"), {
    height: 340,
    x: {
      low: fewest,
      high: most,
      log: 2,
      ticks: [2, 4, 8, 16, 32].filter(t => t >= fewest && t <= most),
      label: "bits of a number that enters a product",
      grid: true
    },
    y: {low, high, log: 10, label: "test loss", format: short},
    layers: [
      {kind: "line", name: "front", color: "var(--muted)", dash: "4 4", points: line}, {
        kind: "bars",
        name: "seeds",
        points: all.map(
            p => [p.bits * .997, Math.min(...p.losses), p.bits * 1.003, Math.max(...p.losses), , color(p.name), .6])
      },
      {
        kind: "dots",
        name: "mean",
        points: all.map(
            p =>
                [p.bits, p.loss, , , `${p.name}: ${p.bits.toPrecision(3)} bits, test loss ${p.loss.toPrecision(4)}`,
                 color(p.name)])
      },
      {kind: "names", name: "recipe", avoid: line, points: best.map(p => [p.bits, p.loss, , , p.name])}
    ]
  });
}

function scale() {
  const runs = shown().map(n => runsOf(n)[0]).filter(r => r.curve.scale.some(s => s !== 1));
  const all = runs.flatMap(r => r.curve.scale).filter(s => s > 0);
  byId("scale-section").style.display = data.runs.some(r => r.curve.scale.some(s => s !== 1)) ? "" : "none";
  if (!all.length) return byId("scale").replaceChildren();
  const layers = runs
                     .flatMap(
                         r =>
                             [{
                               kind: "line",
                               name: r.recipe,
                               color: color(r.recipe),
                               dash: dash(r.recipe),
                               points: r.curve.scale
                                           .flatMap(
                                               (s, i) => i && s !== r.curve.scale[i - 1] ?
                                                   [[r.curve.step[i], r.curve.scale[i - 1]], [r.curve.step[i], s]] :
                                                   [[r.curve.step[i], s]])
                             },
                              troubles(r.recipe)]);
  plotSteps(byId("scale"), {
    height: 260,
    y: {low: Math.min(...all) / 2, high: Math.max(...all) * 2, log: 2, label: "loss scale", format: powerOf},
    layers
  });
}

const allRecipes = "";  // what the menu of recipes gives for all of them; no recipe has this name
// Curves [{name, step, value}] over the steps: those of a recipe, or of each recipe the worst number in every step.
// has: whether a recipe has curves. axis: see meters.
function plotCurves(figure, {recipe, has, curvesOf, worst, axis, format}) {
  const lineOf = (name, look, points) => ({
    kind: "line",
    name,
    ...look,
    points: points.filter(([, v]) => finite(v) && (!axis.log || v > 0))
  });
  const layers = [];
  for (const name of recipe === allRecipes ? shown().filter(has) : [recipe]) {
    const curves = curvesOf(name);
    const steps = [...new Set(curves.flatMap(c => c.step))].sort((a, b) => a - b);
    const at = step => curves.map(c => c.value[c.step.indexOf(step)]).filter(finite);
    if (recipe === allRecipes)
      layers.push(lineOf(
          name, {color: color(name), dash: dash(name)},
          steps.filter(s => at(s).length).map(s => [s, worst(...at(s))])));
    else
      curves.forEach((c, i) => layers.push(lineOf(
          c.name, {color: colorOf(i), dash: dashOf(i)}, c.step.map((s, k) => [s, c.value[k]]))));
    layers.push(troubles(name));
  }
  const values = layers.filter(l => l.kind === "line").flatMap(l => l.points.map(p => p[1]));
  if (!values.length) return figure.replaceChildren();
  const span = axis.log ? {low: Math.min(...values) / 2, high: Math.max(...values) * 2} :
                          {low: Math.min(axis.low, ...values), high: Math.max(axis.high, 1.05 * Math.max(...values))};
  plotSteps(figure, {height: 320, y: {...axis, ...span, format}, layers});
}

// The meter's numbers: the key of the curve, the worst of several, the axis (low and high: what it reaches at least),
// the text.
const meters = {
  "updates that vanish": {
    key: "vanished_percent",
    worst: Math.max,
    axis: {low: 0, high: 1, label: "% of the updates"},
    format: v => short(v) + "%"
  },
  "part of the update that arrives": {
    key: "arriving",
    worst: Math.min,
    axis: {low: 0, high: 1.1, label: "<made, intended> / |intended|²"},
    format: short
  },
  "size of the update": {
    key: "ratio",
    worst: Math.min,
    axis: {log: 2, label: "|update| / |weight|"},
    format: v => v > 0 ? power(Math.round(10 * Math.log2(v)) / 10) : "0"
  }
};
const metered = name => runsOf(name).find(r => (r.updates || []).length);
function meter() {
  const {key, ...how} = meters[chosen("meter-measure")];
  const curvesOf = name => metered(name).updates.map(u => ({name: u.parameter, step: u.step, value: u[key]}));
  plotCurves(byId("meter"), {recipe: chosen("meter-recipe"), has: metered, curvesOf, ...how});
}

// What StepMonitors saw: by the names of lab::Monitor, as meters, and what it is.
const monitors = {
  kurtosis: {
    worst: Math.max,
    axis: {log: 2, label: "mean x⁴ / (mean x²)²"},
    format: short,
    what: "of the elements of an activation that enters a product: 3 of normal numbers; the larger, the more of a " +
        "format's range an outlier takes"
  },
  "feature kurtosis": {
    worst: Math.max,
    axis: {log: 2, label: "of the features' norms"},
    format: short,
    what: "of the norms of an activation's features: 1 if all are alike, their number if one has everything"
  },
  largest: {
    worst: Math.max,
    axis: {log: 2, label: "largest |x|"},
    format: short,
    what: "magnitude of an activation that enters a product"
  },
  "largest logit": {
    worst: Math.max,
    axis: {low: 0, high: 1, label: "largest logit"},
    format: short,
    what: "of an attention, or of another softmax: one that grows from step to step is an early sign of divergence"
  },
  entropy: {
    worst: Math.min,
    axis: {low: 0, high: 1, label: "nats"},
    format: short,
    what: "of an attention's probabilities, or of another softmax, the mean over queries: near 0, each query sees " +
        "one key"
  },
  "lowest entropy": {
    worst: Math.min,
    axis: {low: 0, high: 1, label: "nats"},
    format: short,
    what: "the same of the head in which it is lowest"
  },
  "changed routes": {
    worst: Math.max,
    axis: {low: 0, high: 1, label: "% of the tokens"},
    format: v => short(v) + "%",
    what: "tokens whose experts are not those that the same router chooses in f64 for the same input"
  },
  "busiest expert": {
    worst: Math.max,
    axis: {low: 0, high: 1, label: "% of the choices"},
    format: v => short(v) + "%",
    what: "the share of all choices of experts that the busiest expert gets"
  }
};
const monitored = name => runsOf(name).find(r => (r.monitors || []).length);
const siteOf = m => (m.layer || "outside") + (["router", "attention"].includes(m.operand) ? "" : ` ${m.operand}`);
function monitor() {
  const measure = chosen("monitor-measure");
  if (!measure) return;
  const {what, ...how} = monitors[measure];
  const curvesOf = name => monitored(name)
                               .monitors.filter(m => m.monitor === measure)
                               .map(m => ({name: siteOf(m), step: m.step, value: m.value}));
  byId("monitor-note").textContent = `${measure[0].toUpperCase() + measure.slice(1)}: ${
      what}. At every second sampled step of the first seed, in forward, before the recipe rounds. Dashed uprights ` +
      "mark where the run went wrong.";
  plotCurves(byId("monitor"), {recipe: chosen("monitor-recipe"), has: monitored, curvesOf, ...how});
}

// Weights and their updates as powers of two. Below half the distance to the next number an update is lost.
function cloud() {
  const run = metered(chosen("cloud-recipe"));
  if (!run) return;
  const clouds = run.updates.map(u => ({parameter: u.parameter, ...u.cloud})).filter(c => c.log2_update.length);
  const dtypes = [...new Set(clouds.map(c => c.dtype))];
  const kinds = {
    lost: ["var(--bad)", a => a === 0],
    "in part": ["var(--c6)", a => a !== 0 && Math.abs(a - 1) > .25],
    whole: ["var(--bar)", a => a !== 0 && Math.abs(a - 1) <= .25]
  };
  const points = clouds.flatMap(c => c.log2_weight.map((w, i) => [w, c.log2_update[i], c.arrives[i], c]))
                     .filter(p => finite(p[0]) && finite(p[1]));
  if (!points.length) return byId("cloud").replaceChildren();
  const range = (k, more) => ({
    low: Math.floor(Math.min(...points.map(p => p[k]), ...more)) - 1,
    high: Math.ceil(Math.max(...points.map(p => p[k]))) + 1
  });
  const x = range(0, []);
  const half = (c, e) => Math.max(e - c.mantissa_bits, c.least_exponent) - 1;
  const lines = dtypes.map(d => clouds.find(c => c.dtype === d)).filter(c => c.mantissa_bits);
  const y = range(1, lines.map(c => half(c, x.low)));
  const stairs = c =>
      Array.from({length: x.high - x.low}, (_, i) => x.low + i).flatMap(e => [[e, half(c, e)], [e + 1, half(c, e)]]);
  const layers = Object.entries(kinds).map(
      ([name, [fill, is]]) => ({
        kind: "dots",
        name,
        r: 3,
        opacity: .55,
        points: points.filter(p => is(p[2]))
                    .map(
                        ([w, u, a, c]) =>
                            [w, u, , ,
                             `${c.parameter}: weight ${power(w)}, update ${power(u)}, of which ${
                                 (100 * a).toFixed(0)}% arrive`,
                             fill])
      }));
  const counts = layers.map(l => `${(100 * l.points.length / points.length).toFixed(0)}% ${l.name}`).join(", ");
  byId("cloud-note").textContent =
      `A dot is a weight of ${run.recipe} at step ${clouds[0].step}: to the right how large it is, upwards how large ` +
      `its update should be. Below the line, half the distance to the next number in ${dtypes.join(" or ")}, the ` +
      `update is lost (red); yellow ones arrive in part, blue ones wholly: ${counts}.`;
  plot(byId("cloud"), {
    height: 380,
    legend: true,
    x: {...x, label: "|weight|", format: power, grid: true, space: 60},
    y: {...y, label: "|intended update|", format: power},
    layers: [
      ...layers,
      ...lines.map(
          c => ({kind: "line", name: `half an ulp of ${c.dtype}`, color: "var(--fg)", width: 1.5, points: stairs(c)}))
    ]
  });
}

// What a format does with the exponents between low and high: [from, to, what, colour].
function zonesOf(format, low, high) {
  const within = e => Math.max(low, Math.min(high, e));
  const zones = [
    [low, format.zero_below_exponent, "to zero", "var(--lost)"],
    [format.zero_below_exponent, format.min_normal_exponent, "subnormal", "var(--sub)"],
    [format.max_exponent + 1, high, "too large", "var(--lost)"]
  ];
  return zones.map(([from, to, ...more]) => [within(from), within(to), ...more]).filter(([from, to]) => to > from);
}
// The same as upright lines, for charts of several formats.
function limitsOf(format, color, low, high) {
  const limits = [
    [format.zero_below_exponent, "below it zero"], [format.min_normal_exponent, "below it subnormal"],
    [format.max_exponent + 1, "from here on too large"]
  ];
  const points = limits.filter(([e]) => e > low && e < high).map(([e, what]) => [e, , , , `${format.name}: ${what}`]);
  return {kind: "marks", name: format.name, color, points};
}

// The exponents of the elements of some roles in a recipe's runs, from their histograms. lost: see share().
function histogram(panel, hs, lost) {
  const h = hs[0];
  const counts = h.counts.map((_, i) => hs.reduce((a, other) => a + other.counts[i], 0));
  const total = counts.reduce((a, b) => a + b, 0);
  const formats = [...new Map(hs.flatMap(h => h.formats).map(f => [f.name, f])).values()];
  const one = formats.length === 1;
  panel.append(
      el("p", {},
         `${h.as_if ? "as if in " : ""}${formats.map(f => f.name).join(", ") || "no format"}: ${
             lostText(lost.underflow)} to zero, ${lostText(lost.overflow)} too large`));
  const used = counts.map((v, i) => v ? i + h.first_exponent : NaN).filter(finite);
  const zero = Math.min(...formats.map(f => f.zero_below_exponent), 0);
  const low = Math.max(-60, Math.min(...used, zero < -60 ? -40 : -34));
  const high = Math.min(40, Math.max(...used, 17)) + 1;
  const top = Math.sqrt(Math.max(1, ...counts));
  const f = formats[0] || {zero_below_exponent: low, min_normal_exponent: low, max_exponent: high};
  const zones = one ? zonesOf(f, low, high) : [];
  const fillOf = exponent => {
    if (one && exponent < f.zero_below_exponent) return "var(--bad)";
    return one && exponent < f.min_normal_exponent ? "var(--bar2)" : "var(--bar)";
  };
  const bars = counts.map((v, i) => [i + h.first_exponent, v]).filter(([e, v]) => v && e >= low && e < high);
  plot(panel, {
    height: 176,
    x: {
      low,
      high,
      ticks: Array.from({length: 9}, (_, i) => 16 * (i - 4)).filter(t => t >= low && t <= high),
      format: power
    },
    y: {low: 0, high: 1.16 * top, hidden: true},
    layers: [
      {kind: "bars", name: "zone", points: zones.map(([a, b, , fill]) => [a, 0, b, 1.16 * top, , fill])}, {
        kind: "bars",
        name: "elements",
        gap: .5,
        points: bars.map(
            ([e, v]) =>
                [e, 0, e + 1, Math.sqrt(v), `${power(e)} to ${power(e + 1)}: ${(100 * v / total).toPrecision(3)}%`,
                 fillOf(e)])
      },
      {
        kind: "texts",
        name: "zone",
        points: zones.filter(([a, b, text]) => (b - a) / (high - low) * panel.clientWidth > 8.5 * text.length)
                    .map(([a, b, text]) => [(a + b) / 2, 1.1 * top, , , text])
      },
      ...(one ? [] : formats.map((f, i) => limitsOf(f, colorOf(i), low, high)))
    ]
  });
}

function histograms() {
  const place = byId("histograms");
  const role = chosen("role");
  const roles = role === "gradients" ? ["error", "weight gradient"] : [role];
  place.replaceChildren();
  for (const name of shown()) {
    const hs = runsOf(name).flatMap(r => r.histograms).filter(h => roles.includes(h.role) && h.counts.some(v => v));
    const lost = share(runsOf(name).flatMap(r => r.casts).filter(c => roles.includes(c.role)));
    const panel = el("div", {class: "panel"}, el("h3", {}, name));
    place.append(panel);
    if (!hs.length) {
      panel.append(el("p", {}, nothingIn(lost)));
      continue;
    }
    histogram(panel, hs, lost);
  }
}

// Why there are no bars.
function nothingIn(lost) {
  if (!lost.elements) return "nothing is rounded here";
  if (!lost.overflow && !lost.nan) return `all of ${lost.elements} elements are zero`;
  const nan = lost.nan ? `, ${lost.nan} NaN` : "";
  return `all of ${lost.elements} elements are zero, Inf or NaN: ${lostText(lost.overflow)} overflow${nan}`;
}

// A pixel for each block of an operand.
const blocksOf = name => (runsOf(name).find(r => (r.blocks || []).length) || {blocks: []}).blocks;
function blocks() {
  const place = byId("blocks");
  const regret = chosen("blocks-measure") === "regret";
  const all = blocksOf(chosen("blocks-recipe")).filter(b => b.operand === chosen("blocks-operand"));
  place.replaceChildren();
  for (const b of all) {
    const values = regret ? b.regret_percent.map(r => Math.max(0, r / 100 - 1)) : b.clipped_percent.map(c => c / 100);
    const columns = Math.max(b.columns, Math.min(32, values.length));
    const rows = Math.ceil(values.length / columns);
    const panel =
        el("div", {class: "panel"}, el("h3", {}, `${b.operand} of ${b.layer ? layerText(b.layer) : "no layer"}`),
           el("p", {},
              `${values.length} blocks of ${b.block}, ${b.rule}; ${values.filter(v => v > 0).length} ${
                  regret ? "worse than their best scale" : "clip"}, the worst ${
                  regret ? (1 + Math.max(0, ...values)).toFixed(2) + " times its error" :
                           percent(100 * Math.max(0, ...values), 0)}`));
    place.append(panel);
    plot(panel, {
      height: 20 + Math.max(24, Math.min(220, rows * (panel.clientWidth - 40) / columns)),
      x: {low: 0, high: columns, hidden: true},
      y: {low: rows, high: 0, hidden: true},
      layers: [
        {kind: "bars", name: "all", points: [[0, 0, columns, rows, , "var(--line)", .5]]}, {
          kind: "bars",
          name: regret ? "regret" : "clipped",
          points: values
                      .map(
                          (v, i) =>
                              [i % columns, Math.floor(i / columns), i % columns + 1, Math.floor(i / columns) + 1,
                               `block ${i}: ${b.clipped_percent[i]}% of its elements clip; its error is ${
                                   (b.regret_percent[i] / 100).toFixed(2)} times that of its best power of two`,
                               "var(--bad)", Math.min(1, regret ? v : 4 * v)])
                      .filter(p => p[6] > 0)
        }
      ]
    });
  }
}

function casts() {
  const all = runsOf(chosen("cast-recipe")).flatMap(r => r.casts);
  const rows = [...new Set(all.map(c => c.layer))].map(
      layer => [layer ? layerText(layer) : "(outside of layers)", ...castRoles.map(role => {
        const s = share(all.filter(c => c.layer === layer && c.role === role));
        return el(
            "td", s.nan ? {class: "bad"} : {},
            s.elements ? `${lostText(s.underflow)} / ${lostText(s.overflow)}${s.nan ? ` / ${s.nan} NaN` : ""}` : "–");
      })]);
  byId("casts").replaceChildren(...tableOf(["layer", ...castRoles], rows));
}

function memory() {
  const names = shown();
  const kinds = ["parameters", "masters", "casts", "gradients", "optimizer", "activations", "workspace"];
  const used = kinds.filter(k => data.runs.some(r => r.peak_bytes[k] > 0));
  const max = Math.max(
      1, ...data.runs.map(r => Math.max(r.peak_bytes.total, used.reduce((a, k) => a + (r.peak_bytes[k] || 0), 0))));
  const bars = [];
  const peaks = [];
  const texts = [];
  names.forEach((name, i) => {
    const peak = runsOf(name)[0].peak_bytes;
    let at = 0;
    for (const k of used)
      bars.push([
        at, i + .18, at += peak[k] || 0, i + .82, `${name}, ${k}: ${bytes(peak[k] || 0)}`, colorOf(kinds.indexOf(k))
      ]);
    peaks.push([
      peak.total, i + .08, peak.total + .003 * max, i + .92, `${name}, peak of the sum: ${bytes(peak.total)}`,
      "var(--fg)"
    ]);
    texts.push([max, i + .5, , , bytes(peak.total), "start"]);
  });
  const unit = max >= 2 ** 20 ? 2 ** 20 : 1024;
  const c = plot(byId("memory"), {
    legend: true,
    x: {low: 0, high: max, ticks: roundTicks(0, max / unit, 4).map(t => t * unit), format: bytes, grid: true},
    y: {names, right: 84},
    layers: [
      ...used.map(k => ({kind: "line", name: k, color: colorOf(kinds.indexOf(k)), points: []})),
      {kind: "bars", name: "bytes", points: bars}, {kind: "bars", name: "peak", points: peaks},
      {kind: "texts", name: "peak", strong: true, points: texts}
    ]
  });
  c.svg.style.overflow = "visible";
}

// The order of a sum: products at the bottom, each addition above what it adds.
function sums() {
  const place = byId("sums");
  byId("sums-section").style.display = (data.sums || []).length ? "" : "none";
  place.replaceChildren();
  for (const s of data.sums || []) {
    const products = s.points.filter(p => p[1] === 0);
    const height = s.points[0][1];
    const panel =
        el("div", {class: "panel"}, el("h3", {}, s.name),
           el("p", {}, `${products.length} products, ${height} additions one after the other`));
    place.append(panel);
    const edge = p => [[p[0], p[1]], [p[0], s.points[p[2]][1]], s.points[p[2]].slice(0, 2)];
    plot(panel, {
      height: 240,
      x: {low: -1, high: products.length, format: t => "#" + t, label: "number of the product"},
      y: {low: 0, high: height + 1, label: "additions", ticks: roundTicks(0, height, 4)},
      layers: [
        ...s.points.slice(1).map(
            (p, i) => ({kind: "line", name: "", color: "var(--bar)", width: 1.2, points: edge(p)})),
        {
          kind: "dots",
          name: "sum",
          r: 2.5,
          color: "var(--fg)",
          points: s.points.filter(p => p[1]).map(p => [p[0], p[1], , , `adds to height ${p[1]}`])
        }
      ]
    });
  }
}

// What each format would lose of one run's numbers (core/quantize/what_if.h).
function whatIf() {
  const run = data.runs.find(r => r.what_if);
  if (!run) {
    byId("what-if-section").remove();
    return;
  }
  byId("what-if-note").textContent =
      `The numbers of ${run.recipe}, seed ${run.seed}, at step ${run.what_if.step}, rounded to each format without a ` +
      "scale, with the power of two that keeps most of them, and with max / amax, which puts the largest on the " +
      "format's largest value. SQNR is signal over noise of rounding, in dB: one more bit of mantissa is worth 6. " +
      "One scale serves all tensors of a role here.";
  const fraction = x => x === 0 ? "0" : +(100 * x).toPrecision(2) + "%";
  const db = x => x === null ? "exact" : x.toFixed(1);
  const scaleText = s => s.startsWith("2^") ? power(s.slice(2)) : s;
  const groups = [["", 1], ["as it is", 4], ["best power of two", 4], ["max / amax", 2]];
  const head =
      ["format", "to zero", "subnormal", "too large", "SQNR", "scale", "to zero", "too large", "SQNR", "scale", "SQNR"];
  for (const role of run.what_if.roles.filter(r => r.elements)) {
    const rows = role.formats.map(
        f =>
            [f.format, fraction(f.unscaled.underflow), fraction(f.unscaled.subnormal), fraction(f.unscaled.overflow),
             db(f.unscaled.sqnr_db), scaleText(f.best.scale), fraction(f.best.underflow), fraction(f.best.overflow),
             db(f.best.sqnr_db), scaleText(f.amax.scale), db(f.amax.sqnr_db)]);
    const zeros = role.zeros ? fraction(role.zeros / role.elements) : "none";
    const notFinite = role.not_finite ? `, ${role.not_finite} not finite` : "";
    const range = `the others from ${role.amin.toPrecision(3)} to ${role.amax.toPrecision(3)}`;
    const lossScale = `As gradients in f16 they would take the loss scale ${scaleText(role.loss_scale)}: the largest ` +
        `power of two at which none is too large, less ${role.headroom} for headroom.`;
    const about = `${role.elements} elements, ${zeros} of them zero${notFinite}; ${range}. ` +
        (role.role === "weights" ? "" : lossScale);
    byId("what-if").append(
        el("h3", {}, role.role), el("p", {class: "note"}, about),
        el("div", {class: "scroll"},
           el("table", {}, el("tr", {}, ...groups.map(([t, n]) => el("th", {colspan: n, class: "group"}, t))),
              ...tableOf(head, rows))));
  }
}

const drawings = {
  heat,
  lineage,
  loss,
  accuracy,
  pareto,
  scale,
  meter,
  monitor,
  cloud,
  histograms,
  blocks,
  casts,
  memory,
  sums
};
const draw = () => Object.values(drawings).forEach(f => f());
overSteps.redraw = () => [loss, scale, meter, monitor].forEach(f => f());

// Fills a menu, and draws anew what it chooses.
function menu(id, options, redraw, selected) {
  byId(id).replaceChildren(
      ...options.map(o => typeof o === "string" ? [o, o] : o)
          .map(([value, text]) => el("option", {value, ...(value === selected ? {selected: ""} : {})}, text)));
  byId(id).addEventListener("change", redraw);
}
const hideUnless = (there, ...ids) => {
  if (!there)
    for (const id of ids) byId(id).style.display = "none";
};

// What was compared, on which machine.
function describe() {
  const first = data.runs[0] || {};
  const seeds = new Set(data.runs.map(r => r.seed)).size;
  const count = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;
  byId("subtitle").textContent =
      `${first.model} on ${first.data}, ${count(recipes.length, "recipe")}, ${count(seeds, "seed")}, ${
          count(
              first.epochs,
              "epoch")}. The same network, data and order of batches in every run; only the number formats differ.`;
  document.title += `: ${first.model} on ${first.data}`;
  // a run that an earlier version finished tells nothing of these
  byId("what-ran").textContent =
      (first.batch ? `Batches of ${first.batch}, ${first.optimizer}, learning rate ${first.lr}, on ${first.device}` :
                     `On ${first.device}`) +
      "; the recipes as JSON";
  byId("definitions").textContent =
      JSON.stringify(recipes.map(name => runsOf(name)[0].definition).filter(d => d), null, 2);
  byId("footer").textContent =
      `Gradual ${data.version}. ` + Object.entries(data.machine).map(([k, v]) => `${k}: ${v}`).join(", ");
}

// Buttons that hide recipes.
function legend() {
  byId("legend").replaceChildren(...recipes.map(name => {
    const style = {
      none: `background:${color(name)}`,
      "8 4": `border-color:${color(name)}`,
      "2 4": `border-color:${color(name)};border-style:dotted`
    }[dash(name)];
    const b =
        el("button", {type: "button", "aria-pressed": "true"},
           el("i", {class: dash(name) === "none" ? "" : "dashed", style}), name);
    b.addEventListener("click", () => {
      hidden.has(name) ? hidden.delete(name) : hidden.add(name);
      b.setAttribute("aria-pressed", String(!hidden.has(name)));
      draw();
    });
    return b;
  }));
}

// Whether a recipe rounds the results of all ops.
function isPure(name) {
  const {mode, quantization} = runsOf(name)[0].definition || {};
  return mode === "pure" || !!quantization?.result;
}

function menus() {
  const worstFirst = names => names.filter(n => n !== baseline)
                                  .sort(
                                      (a, b) => (metric.better === "lower" ? -1 : 1) *
                                          (mean(runsOf(a).map(valueOf)) - mean(runsOf(b).map(valueOf))));
  const studied = recipes.filter(shadowed);
  const withUpdates = recipes.filter(metered);
  const withBlocks = recipes.filter(n => blocksOf(n).length);
  const withMonitors = recipes.filter(monitored);
  const seen = new Set(withMonitors.flatMap(n => monitored(n).monitors.map(m => m.monitor)));
  menu("heat-measure", Object.entries(measures).map(([key, m]) => [key, m.title]), heat);
  menu("lineage-recipe", studied, lineage, worstFirst(studied)[0]);
  menu("lineage-axis", ["linear", "logarithmic"], lineage);
  const difference = recipes.includes(baseline) ? [["difference", `difference from ${baseline}`]] : [];
  menu("loss-view", ["logarithmic", "linear", ...difference], loss);
  menu("meter-measure", Object.keys(meters), meter);
  menu("meter-recipe", [[allRecipes, "all recipes, the worst parameter of each"], ...withUpdates], meter);
  menu("monitor-measure", Object.keys(monitors).filter(m => seen.has(m)), monitor);
  menu("monitor-recipe", [[allRecipes, "all recipes, the worst place of each"], ...withMonitors], monitor);
  menu("cloud-recipe", withUpdates, cloud, withUpdates.find(isPure) || worstFirst(withUpdates)[0]);
  menu(
      "role",
      [
        ["gradients", "errors and weight gradients"], ["error", "errors"], ["weight gradient", "weight gradients"],
        ["activation", "activations"], ["weight", "weights"]
      ],
      histograms);
  menu("blocks-recipe", withBlocks, blocks, worstFirst(withBlocks)[0]);
  menu("blocks-operand", [...new Set(withBlocks.flatMap(n => blocksOf(n).map(b => b.operand)))], blocks);
  menu("blocks-measure", ["clipped", "regret"], blocks);
  menu("cast-recipe", recipes, casts);
  hideUnless(studied.length, "lineage-section");
  hideUnless(withUpdates.length, "meter-section");
  hideUnless(withBlocks.length, "blocks-section");
  hideUnless(withMonitors.length, "monitor-section");
}

// The page for #figure=ID has one figure alone, for gradual-lab figure.
function showFigureAlone() {
  const alone = /^#figure=([a-z]+)$/.exec(location.hash);
  const figure = alone && byId(alone[1]);
  if (!figure || !figure.offsetWidth) return;
  const svg = figureSvg(figure);
  const [width, height] = ["width", "height"].map(k => svg.getAttribute(k));
  document.head.append(el(
      "style", {}, `@page { size: ${width}px ${height}px; margin: 0 } body { margin: 0 } svg { width: ${width}px; }`));
  document.body.replaceChildren(svg);
}

function start() {
  describe();
  legend();
  menus();
  byId("metric-title").textContent = `Test ${metric.name}`;
  hideUnless((data.pairs || []).length, "pairs-section");
  summary();
  pairs();
  phases();
  findings();
  whatIf();
  draw();
  addTools();
  showFigureAlone();
}
// Paper has no clicks.
addEventListener("beforeprint", () => {
  for (const folded of document.querySelectorAll("section details")) folded.open = true;
});
let timer;
addEventListener("resize", () => {
  clearTimeout(timer);
  timer = setTimeout(draw, 120);
});
start();
