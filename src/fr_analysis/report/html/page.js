// The grid: what the page's data holds, drawn by Plotly, for the mouse and for the keyboard.
"use strict";
(async () => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const plot = byId("plot");
  const UNKNOWN = 0, ABSENT = 1, FIRST_CALL = 2;
  // By how much a state deserves to be seen: the highest of a block is shown where cells are merged.
  const STATES = ["done", "unknown", "absent", "waiting", "odd"];
  const MARKS = ["", "?", "\u00d7", "\u25cf", "!"];
  const WORDS = ["joined", "no record", "never joined", "waits", "differs from its peers"];
  const MOST_ROWS = 300, MOST_COLUMNS = 600, MOST_MARKS = 1200, NEWEST = 40;

  const packed = Uint8Array.from(atob(data.cells), (char) => char.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const cells = new Uint16Array(await new Response(stream).arrayBuffer());
  const levelOfCall = data.calls.map((call) => STATES.indexOf(call.state));

  const unfold = (spans) => spans.flatMap(([first, count]) => Array.from({length: count}, (_, i) => first + i));
  const levelOf = (cell) => (cell >= FIRST_CALL ? levelOfCall[cell - FIRST_CALL] : cell === ABSENT ? 2 : 1);

  let group, numbers, rows, columns, window_, cursor, hadNothing = false;

  function parseRanks(text) {
    const wanted = [];
    for (const part of text.split(",").map((piece) => piece.trim()).filter(Boolean)) {
      const found = /^(\d+)(?:-(\d+))?$/.exec(part);
      if (!found) return null;
      wanted.push([Number(found[1]), Number(found[2] ?? found[1])]);
    }
    return wanted;
  }

  // Rows and columns that the filters leave; the window is a part of these, as far as one has zoomed.
  function choose(keepWindow) {
    group = data.groups[Number(byId("group").value)];
    numbers = unfold(group.numbers);
    const wanted = parseRanks(byId("ranks").value);
    byId("ranks").setAttribute("aria-invalid", String(wanted === null));
    const isWanted = (spans) => !wanted?.length || wanted.some(([low, high]) =>
      spans.some(([first, count]) => first <= high && first + count > low));
    rows = group.rows.map((_, at) => at).filter((at) => isWanted(group.rows[at]));
    const operation = byId("operation").value;
    columns = numbers.map((_, at) => at);
    if (operation) {
      columns = columns.filter((column) => rows.some((row) => {
        const cell = cellAt(row, column);
        return cell >= FIRST_CALL && data.calls[cell - FIRST_CALL].operation === operation;
      }));
    }
    // After filters that left nothing there is no window to keep.
    if (!keepWindow || !window_ || window_[1] <= window_[0] || window_[3] <= window_[2] || hadNothing) newest();
    hadNothing = !rows.length || !columns.length;
    window_ = clamp(window_);
    cursor = null;
    draw();
  }

  const cellAt = (row, column) => cells[group.at + row * numbers.length + column];

  function clamp([x1, x2, y1, y2]) {
    const width = Math.max(1, Math.min(columns.length, x2 - x1));
    const height = Math.max(1, Math.min(rows.length, y2 - y1));
    x1 = Math.max(0, Math.min(columns.length - width, x1));
    y1 = Math.max(0, Math.min(rows.length - height, y1));
    return [x1, x1 + width, y1, y1 + height].map(Math.round);
  }

  function newest() { window_ = [columns.length - NEWEST, columns.length, 0, rows.length]; }
  function everything() { window_ = [0, columns.length, 0, rows.length]; }
  function zoom(factor) {
    const [x1, x2, y1, y2] = window_;
    const centre = cursor ?? [(x1 + x2) / 2, (y1 + y2) / 2];
    const half = [(x2 - x1) * factor / 2, (y2 - y1) * (y2 - y1 > 24 || factor > 1 ? factor : 1) / 2];
    window_ = clamp([centre[0] - half[0], centre[0] + half[0], centre[1] - half[1], centre[1] + half[1]]);
    draw();
  }

  // At most so many cells are drawn: beyond, each stands for a block, and shows its worst.
  function blocks() {
    const [x1, x2, y1, y2] = window_;
    const stepX = Math.max(1, Math.ceil((x2 - x1) / MOST_COLUMNS));
    const stepY = Math.max(1, Math.ceil((y2 - y1) / MOST_ROWS));
    const z = [], x = [], y = [];
    for (let column = x1; column < x2; column += stepX) x.push(column);
    for (let row = y1; row < y2; row += stepY) {
      y.push(row);
      z.push(x.map((column) => {
        let worst = 0;
        for (let r = row; r < Math.min(row + stepY, y2); r++)
          for (let c = column; c < Math.min(column + stepX, x2); c++)
            worst = Math.max(worst, levelOf(cellAt(rows[r], columns[c])));
        return worst;
      }));
    }
    return {x, y, z, stepX, stepY};
  }

  const ticks = (from, to, most) => {
    const step = Math.max(1, Math.ceil((to - from) / most));
    return Array.from({length: Math.ceil((to - from) / step)}, (_, i) => from + i * step);
  };
  const shortened = (label) => (label.length > 16 ? label.slice(0, 15) + "\u2026" : label);

  function draw() {
    const style = getComputedStyle(document.documentElement);
    const color = (name) => style.getPropertyValue(`--${name}`).trim();
    const nothing = !rows.length || !columns.length;
    plot.style.visibility = nothing ? "hidden" : "";
    if (nothing) {
      byId("size").textContent = "Nothing is left by these filters.";
      byId("cell").textContent = "";
      return;
    }
    const {x, y, z, stepX, stepY} = blocks();
    const [x1, x2, y1, y2] = window_;
    const marks = x.length * y.length <= MOST_MARKS;
    const scale = STATES.flatMap((state, at) =>
      [[at / STATES.length, color(state)], [(at + 1) / STATES.length, color(state)]]);
    const trace = {
      type: "heatmap", x, y, z, x0: x[0], dx: stepX, colorscale: scale, zmin: -0.5, zmax: 4.5, showscale: false,
      xgap: x.length < 200 ? 2 : 0, ygap: y.length < 100 ? 2 : 0, hoverinfo: "none",
      ...(marks ? {text: z.map((line) => line.map((level) => MARKS[level])), texttemplate: "%{text}",
        textfont: {size: 14}} : {}),
    };
    const atX = ticks(x1, x2, Math.max(4, plot.clientWidth / 45)), atY = ticks(y1, y2, 32);
    const layout = {
      height: Math.max(150, Math.min(620, 70 + y.length * 30)), dragmode: "zoom",
      margin: {l: 130, r: 10, t: 10, b: 44}, paper_bgcolor: color("ground"), plot_bgcolor: color("line"),
      font: {color: color("text"), family: "system-ui, sans-serif", size: 12},
      xaxis: {title: {text: "sequence number"}, range: [x1 - 0.5, x2 - 0.5], tickvals: atX, showgrid: false,
        zeroline: false, ticktext: atX.map((at) => String(numbers[columns[at]]))},
      yaxis: {range: [y2 - 0.5, y1 - 0.5], tickvals: atY, showgrid: false, zeroline: false,
        ticktext: atY.map((at) => `rank ${shortened(group.labels[rows[at]])}`)},
      shapes: cursor ? [{type: "rect", x0: cursor[0] - 0.5, x1: cursor[0] + 0.5, y0: cursor[1] - 0.5,
        y1: cursor[1] + 0.5, line: {color: color("cursor"), width: 3}}] : [],
    };
    Plotly.react(plot, [trace], layout, {displayModeBar: false, responsive: true, doubleClick: false});
    const merged = stepX * stepY > 1 ? ` A cell stands for up to ${stepX * stepY}; zoom in for each.` : "";
    byId("size").textContent =
      `${group.members} ranks${group.members > group.rows.length ? ` in ${group.rows.length} rows of alike ones` : ""}, ` +
      `${numbers.length} sequence numbers; shown: ${y2 - y1} rows, ${x2 - x1} numbers.${merged}`;
  }

  function tell(column, row) {
    const cell = cellAt(rows[row], columns[column]);
    const call = cell >= FIRST_CALL ? data.calls[cell - FIRST_CALL] : null;
    const ranks = group.labels[rows[row]];
    const lines = [`Rank ${ranks}, #${numbers[columns[column]]}: ${WORDS[levelOf(cell)]}` +
      (call ? `, ${call.what}` : cell === UNKNOWN ? ": no dump, or its ring buffer begins later" : "")];
    if (call?.code) lines.push(`called at ${call.code}`);
    if (call?.stack.length > 1) lines.push(...call.stack.slice(0, 12).map((frame) => `    ${frame}`));
    byId("cell").textContent = lines.join("\n");
  }

  function move(dx, dy) {
    if (!rows.length || !columns.length) return;
    const [x1, x2, y1, y2] = window_;
    const [x, y] = cursor ?? [x2 - 1 - dx, y1 - dy];
    cursor = [Math.max(0, Math.min(columns.length - 1, x + dx)), Math.max(0, Math.min(rows.length - 1, y + dy))];
    const shift = (at, low, high) => (at < low ? at - low : at >= high ? at - high + 1 : 0);
    const sx = shift(cursor[0], x1, x2), sy = shift(cursor[1], y1, y2);
    window_ = clamp([x1 + sx, x2 + sx, y1 + sy, y2 + sy]);
    draw();
    tell(...cursor);
  }

  if (!data.groups.length) {
    byId("size").textContent = "No dump holds a collective.";
    return;
  }
  byId("group").append(...data.groups.map((g, at) => new Option(`${g.name}, ${g.members} ranks`, String(at))));
  const operations = [...new Set(data.calls.map((call) => call.operation))].filter(Boolean).sort();
  byId("operation").append(...operations.map((name) => new Option(name, name)));
  byId("group").addEventListener("change", () => choose(false));
  byId("operation").addEventListener("change", () => choose(false));
  byId("ranks").addEventListener("input", () => choose(true));
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  byId("in").addEventListener("click", () => zoom(0.5));
  byId("out").addEventListener("click", () => zoom(2));
  byId("all").addEventListener("click", () => { everything(); draw(); });
  byId("front").addEventListener("click", () => { newest(); window_ = clamp(window_); draw(); });
  plot.addEventListener("keydown", (event) => {
    const steps = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]};
    if (steps[event.key]) move(...steps[event.key]);
    else if (event.key === "+" || event.key === "=") zoom(0.5);
    else if (event.key === "-") zoom(2);
    else return;
    event.preventDefault();
  });
  choose(false);
  const inside = (at, low, high) => Math.max(low, Math.min(high - 1, Math.round(at)));
  const at = ([x, y]) => [inside(x, window_[0], window_[1]), inside(y, window_[2], window_[3])];
  plot.on("plotly_hover", (event) => tell(...at([event.points[0].x, event.points[0].y])));
  plot.on("plotly_click", (event) => {
    cursor = at([event.points[0].x, event.points[0].y]);
    draw();
    tell(...cursor);
  });
  plot.on("plotly_relayout", (change) => {
    if (!("xaxis.range[0]" in change) && !("yaxis.range[0]" in change)) return;
    const [x1, x2, y1, y2] = window_;
    window_ = clamp([(change["xaxis.range[0]"] ?? x1 - 0.5) + 0.5, (change["xaxis.range[1]"] ?? x2 - 0.5) + 0.5,
      (change["yaxis.range[1]"] ?? y1 - 0.5) + 0.5, (change["yaxis.range[0]"] ?? y2 - 0.5) + 0.5]);
    draw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  document.body.dataset.ready = "yes";
})();
