// Fills the page of a sweep from the JSON in #data.
const data = JSON.parse(byId("data").textContent);
const factor = data.measure.share ? 100 : 1;
const digits = data.measure.share ? 2 : 4;
const unit = data.measure.share ? "%" : "";
const isHigherBetter = data.measure.better === "higher";
const text = value => finite(value) ? (factor * value).toFixed(digits) + unit : "–";
const points = data.measure.share ? " pp" : "";  // of a difference of shares
const size = value => (factor * value).toFixed(digits) + points;
const half = value => finite(value) ? ` ± ${size(value)}` : "";
const signed = value => (value >= 0 ? "+" : "−") + size(Math.abs(value));
// Without chance between seeds or combinations nobody knows.
const isChance = term => data.error_degrees && !term.holds;
const mean = values => values.reduce((a, b) => a + b, 0) / values.length;
const row = (tag, texts) => el("tr", {}, ...texts.map(t => t instanceof Element ? t : el(tag, {}, t)));
const nameOf = term => term.factors.join(" × ");
const levelsOf = name => data.factors.find(f => f.name === name).levels;
const counted = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;

function fillHeader() {
  const seeds = data.combinations[0].values.length;
  const better = isHigherBetter ? "higher is better" : "lower is better";
  byId("subtitle").textContent = `${counted(data.combinations.length, "combination")} of ${
      counted(data.factors.length, "factor")}, ${counted(seeds, "seed")}; ${data.measure.name}, ${better}; mean ${
      text(data.mean)}${data.measure.share ? "; pp are percentage points" : ""}`;
  const warnings = [];
  if (data.diverged) warnings.push(`${counted(data.diverged, "training")} diverged.`);
  if (data.replaced)
    warnings.push(`The worst finite value stands for ${counted(data.replaced, "value")} that ${
        data.replaced === 1 ? "is" : "are"} not finite.`);
  if (!data.error_degrees) warnings.push("There are no intervals: several seeds or a third factor would give them.");
  byId("warnings").textContent = warnings.join(" ");
}

// A cell with a bar behind its text, for a share of 0 to 1.
function shareCell(share) {
  const cell = el("td", {}, finite(share) ? (100 * share).toFixed(1) + "%" : "–");
  const wide = finite(share) ? 100 * Math.max(0, share) : 0;
  cell.style.background = `linear-gradient(to right, var(--sub) ${wide}%, transparent ${wide}%)`;
  return cell;
}

function fillTerms() {
  const pText = p => !finite(p) ? "–" : p < 1e-4 ? "< 0.0001" : p.toFixed(4);
  const lines = [...data.terms].sort((a, b) => b.share - a.share).map(t => {
    const style = t.holds ? {class: "holds"} : {};
    return row("td", [el("td", style, nameOf(t)), shareCell(t.share), finite(t.f) ? t.f.toFixed(1) : "–", pText(t.p)]);
  });
  if (data.factors.length > 2) lines.push(row("td", ["of three and more", shareCell(data.higher_share), "–", "–"]));
  if (data.combinations[0].values.length > 1)
    lines.push(row("td", ["seeds", shareCell(data.error_share), "–", "–"]));
  byId("terms").append(row("th", ["choice", "share", "F", "p"]), ...lines);
}

// The levels of a factor as rows: a dot at the mean, a line for the interval.
function mainChart(term) {
  const levels = levelsOf(term.factors[0]);
  const spans = term.effects.map(e => [e.mean - (e.half || 0), e.mean + (e.half || 0)]);
  const low = Math.min(data.mean, ...spans.map(s => s[0]));
  const high = Math.max(data.mean, ...spans.map(s => s[1]));
  const left = 8 + 7.2 * Math.max(...levels.map(l => l.length));
  const width = Math.max(290, left + 200);
  const height = 26 * levels.length + 34;
  const at = scaleOf({low, high}, left + 10, width - 16);
  const svg = el("svg", {viewBox: `0 0 ${width} ${height}`, width, height, role: "img"});
  svg.append(el("line", {
    x1: at(data.mean),
    x2: at(data.mean),
    y1: 4,
    y2: height - 24,
    stroke: "var(--muted)",
    "stroke-dasharray": "4 4"
  }));
  levels.forEach((level, i) => {
    const y = 18 + 26 * i;
    const effect = term.effects[i];
    const g = el("g", {});
    g.append(el("text", {x: left, y: y + 4, "text-anchor": "end", class: "strong"}, level));
    g.append(el("rect", {x: left, y: y - 13, width: width - left, height: 26, fill: "transparent"}));
    if (finite(effect.half))
      g.append(el("line",
                  {x1: at(spans[i][0]), x2: at(spans[i][1]), y1: y, y2: y, stroke: "var(--c0)", "stroke-width": 2}));
    g.append(el("circle", {cx: at(effect.mean), cy: y, r: 4.5, fill: "var(--c0)"}));
    svg.append(hover(g, `${level}: ${text(effect.mean)}\neffect ${signed(effect.effect)}${half(effect.half)}`));
  });
  for (const [value, anchor] of [[low, "start"], [high, "end"]])
    svg.append(el("text", {x: at(value), y: height - 6, "text-anchor": anchor}, text(value)));
  return svg;
}

function fillMains() {
  for (const term of data.terms.filter(t => t.factors.length === 1)) {
    const about = `share ${(100 * term.share).toFixed(1)}%` + (isChance(term) ? ", within chance" : "");
    byId("mains").append(
        el("div", {class: "panel"}, el("h3", {}, nameOf(term)), el("p", {}, about), mainChart(term)));
  }
}

// The cells of an interaction: means, coloured by what the interaction adds.
function fillCells(term) {
  const [rows, columns] = term.factors.map(levelsOf);
  const most = Math.max(...term.effects.map(e => Math.abs(e.effect))) || 1;
  const cell = (effect, i, j) => {
    const good = (effect.effect > 0) === isHigherBetter;
    const strength = isChance(term) ? 0 : Math.round(45 * Math.abs(effect.effect) / most);
    const td = el("td", {}, `${text(effect.mean)} (${signed(effect.effect)}${half(effect.half)})`);
    td.style.background = `color-mix(in srgb, var(${good ? "--c2" : "--c4"}) ${strength}%, transparent)`;
    return hover(td, `${rows[i]}, ${columns[j]}\nmean ${text(effect.mean)}\nadds ${signed(effect.effect)}${
                         half(effect.half)} to both main effects`);
  };
  const lines = rows.map((name, i) => row("td", [name, ...columns.map((_, j) => {
                                                   const effect = term.effects[i * columns.length + j];
                                                   return cell(effect, i, j);
                                                 })]));
  byId("cells").replaceChildren(row("th", [term.factors.join(" \\ "), ...columns]), ...lines);
  byId("interaction-note").textContent =
      `Each cell has the mean, and in brackets what the two choices do together beyond the sum of what each does ` +
      `alone, with its 95% interval; green is better. ` +
      `This interaction has ${(100 * term.share).toFixed(1)}% of all squares` +
      (isChance(term) ? ", within chance." : ".");
}

function fillInteractions() {
  const terms = data.terms.filter(t => t.factors.length === 2).sort((a, b) => b.share - a.share);
  if (!terms.length) {
    byId("interactions-section").remove();
    return;
  }
  const select = byId("interaction");
  select.append(...terms.map((t, i) => el("option", {value: i}, nameOf(t) + (t.holds ? " *" : ""))));
  select.addEventListener("change", () => fillCells(terms[select.value]));
  fillCells(terms[0]);
}

function fillCombinations() {
  const seeds = data.combinations[0].values.map((_, i) => `seed ${i}`);
  const head = row("th", [...data.factors.map(f => f.name), "mean", "± 95%", ...seeds]);
  const sign = isHigherBetter ? -1 : 1;
  const sorted = [...data.combinations].sort((a, b) => sign * (mean(a.values) - mean(b.values)));
  const interval = finite(data.combination_half) ? size(data.combination_half) : "–";
  const lines = sorted.map(c => row("td", [...c.levels, text(mean(c.values)), interval, ...c.values.map(text)]));
  byId("combinations").append(head, ...lines);
  byId("combinations-note").textContent =
      "The best comes first. The interval of a mean follows from chance between seeds, which counts as equal " +
      "everywhere.";
}

function fillParts() {
  for (const part of data.parts)
    byId("parts").append(el("li", {}, el("a", {href: part.report}, part.name), part.options));
}

fillHeader();
fillTerms();
fillMains();
fillInteractions();
fillCombinations();
fillParts();
for (const table of document.querySelectorAll(".sorted")) sortable(table);
