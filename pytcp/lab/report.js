// The chart of a report: one Plotly figure with a common time axis, redrawn for what is in view.
//
// The page holds all data (#data, made by report.py). A view shows at most what the screen can tell apart: super-segments of one
// reason that fall into the same pixels become one bar, lines keep the least and the greatest value of each pixel column. Zooming in
// draws the view anew from all data. Nothing is loaded from anywhere.
"use strict";
(async () => {
  const unpack = text => new Response(new Blob([Uint8Array.from(atob(text), one => one.charCodeAt(0))]).stream().pipeThrough(new DecompressionStream("deflate"))).text();
  const chart = document.getElementById("chart");
  const packed = document.getElementById("data");
  if (packed.type !== "application/json" && !window.DecompressionStream) {
    chart.textContent = "This browser cannot unpack so long a run: that takes Chrome 80, Firefox 113 or Safari 16.4.";
    return;
  }
  const data = JSON.parse(packed.type === "application/json" ? packed.textContent : await unpack(packed.textContent));
  const root = document.documentElement;
  const UNITS = { ns: 1, "µs": 1e3, ms: 1e6, s: 1e9 };
  const unit = UNITS[data.unit];
  const MARGIN = { l: 84, r: 178, t: 30, b: 46 };
  const MANY = 2500; // super-segments in view that are still drawn one by one
  const shown = { variants: new Set(data.shown.variants), flows: new Set(data.shown.flows) };
  const CHIPS = 12; // flows that can be chosen at once; more on a click
  let range = null; // the view in units, null: everything
  const yranges = {}; // ranges that the reader chose, by axis
  let printing = false;
  let spanShown = [0, data.span]; // from the first to the last thing that happened to the flows shown, ns

  const count = n => Math.round(n).toLocaleString("en");
  const digits = (n, k) => Number(n.toPrecision(k)).toString();
  function time(ns) {
    const size = Math.abs(ns);
    const [name, factor] = size < 1e3 ? ["ns", 1] : size < 1e6 ? ["µs", 1e3] : size < 1e9 ? ["ms", 1e6] : ["s", 1e9];
    return `${digits(ns / factor, 4)} ${name}`;
  }
  // a moment: to the microsecond, however long the run
  const moment = ns => (unit >= 1e9 ? `${(ns / 1e9).toFixed(6)} s` : unit >= 1e6 ? `${(ns / 1e6).toFixed(3)} ms` : `${(ns / 1e3).toFixed(3)} µs`);
  const css = name => getComputedStyle(root).getPropertyValue(name).trim();
  const clean = text => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;");

  // the first index whose value is not below `value`
  function bound(sorted, value) {
    let low = 0;
    let high = sorted.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (sorted[middle] < value) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  // indices [from, to) of what is in view, with one neighbour at each side so that lines reach the border
  function inView(times, view) {
    return [Math.max(0, bound(times, view[0]) - 1), Math.min(times.length, bound(times, view[1]) + 1)];
  }

  // --- what a reader sees when pointing at a super-segment ---

  function aboutSegment(track, i) {
    const x = track.xmit;
    const why = data.words[x.why[i]];
    const lines = [
      `<b>${count(x.segs[i])} segment${x.segs[i] === 1 ? "" : "s"}, ${count(x.len[i])} bytes</b> at ${moment(x.t[i])}` + (x.rtx[i] ? " · <b>retransmit</b>" : ""),
      `seq ${count(x.seq[i])} – ${count(x.seq[i] + x.len[i])}` + (x.flags[i] === null ? "" : ` · flags ${clean(data.words[x.flags[i]])}`),
      `<b>this size:</b> ${clean(why)}` + (data.why[why] ? ` — ${data.why[why]}` : ""),
    ];
    if (x.cause[i] !== null) {
      const cause = data.words[x.cause[i]];
      lines.push(`<b>sent again because of:</b> ${clean(cause)}` + (data.causes[cause] ? ` — ${data.causes[cause]}` : ""));
    }
    const facts = [["cwnd", x.cwnd[i]], ["in flight", x.inflight[i]], ["quota", x.quota[i]], ["max segs", x.max[i]], ["gso size", x.gso[i]]];
    lines.push(facts.filter(([, value]) => value !== null).map(([name, value]) => `${name} ${count(value)}`).join(" · "));
    const held = x.held[i];
    const last = i === x.t.length - 1;
    const gap = last ? "" : ` (${time(x.t[i + 1] - x.t[i])})`;
    if (held.length) {
      lines.push(`<b>${last ? "nothing more sent" : "next one held back"}</b>${gap}:`);
      for (let k = 0; k < held.length; k += 2) {
        const gate = data.words[held[k]];
        lines.push(`  ${clean(gate)} ${time(held[k + 1])}` + (data.gates[gate] ? ` — ${data.gates[gate]}` : ""));
      }
    } else if (!last) lines.push(`<b>next one:</b> ${x.t[i + 1] === x.t[i] ? "at the same moment" : "after " + time(x.t[i + 1] - x.t[i])}`);
    return lines.filter(Boolean).join("<br>");
  }

  // --- super-segments as bars ---

  function segmentTraces(track, axis, view, pixel, tall, named) {
    const x = track.xmit;
    const [from, to] = inView(x.t, view);
    const each = to - from <= MANY;
    const width = ((to - from < 400 ? 5 : 3) * pixel) / unit;
    const classes = new Map(track.classes.map(name => [name, { x: [], y: [], base: [], hovertext: [] }]));
    const open = new Map(); // the bar being merged, by class
    const put = (name, bar) => {
      const into = classes.get(name);
      const least = (name === "retransmit" ? 6 : 2) * tall;
      const length = bar.end - bar.seq;
      into.x.push(bar.t / unit);
      into.base.push(length < least ? bar.seq - (least - length) / 2 : bar.seq);
      into.y.push(Math.max(length, least));
      into.hovertext.push(
        bar.number === 1
          ? aboutSegment(track, bar.index)
          : `<b>${count(bar.number)} super-segments, ${count(bar.segs)} segments</b> at ${moment(bar.t)}<br>seq ${count(bar.seq)} – ${count(bar.end)}<br><b>this size:</b> ${clean(name)}<br>zoom in to see each`,
      );
    };
    let drawn = 0;
    for (let i = from; i < to; i++) {
      const name = x.rtx[i] ? "retransmit" : data.words[x.why[i]];
      const seq = x.seq[i];
      const end = seq + x.len[i];
      const bar = open.get(name);
      if (!each && bar && x.t[i] - bar.t < pixel && seq - bar.end < 2 * tall && bar.seq - end < 2 * tall) {
        bar.seq = Math.min(bar.seq, seq);
        bar.end = Math.max(bar.end, end);
        bar.number += 1;
        bar.segs += x.segs[i];
        continue;
      }
      if (bar) put(name, bar), drawn++;
      open.set(name, { t: x.t[i], seq, end, number: 1, segs: x.segs[i], index: i });
    }
    for (const [name, bar] of open) put(name, bar), drawn++;
    const traces = [];
    for (const [name, into] of classes) {
      traces.push({
        ...into, type: "bar", name, uid: `${track.name} ${name}`, width, yaxis: axis, legendgroup: `why ${name}`, showlegend: !named.has(name), legend: "legend",
        marker: { color: data.colours.why[name] || "#888", line: { width: 0 } }, hovertemplate: "%{hovertext}<extra></extra>",
        meta: { panel: "sequence", track: track.name, why: name },
      });
      named.add(name);
    }
    return [traces, to - from, drawn];
  }

  function sackTrace(track, axis, view, pixel, tall, first) {
    const s = track.sacks;
    const [from, to] = inView(s.t, view);
    const bars = { x: [], y: [], base: [], hovertext: [] };
    const seen = new Map(); // block -> time of the bar that shows it in this pixel column
    for (let i = from; i < to; i++) {
      const key = `${Math.round(s.seq[i] / tall)} ${Math.round(s.end[i] / tall)}`;
      if (seen.has(key) && s.t[i] - seen.get(key) < pixel) continue;
      seen.set(key, s.t[i]);
      bars.x.push(s.t[i] / unit);
      bars.base.push(s.seq[i]);
      bars.y.push(Math.max(s.end[i] - s.seq[i], 1.5 * tall));
      bars.hovertext.push(`<b>SACK</b> at ${moment(s.t[i])}<br>${count(s.seq[i])} – ${count(s.end[i])}`);
    }
    return {
      ...bars, type: "bar", name: "SACK", uid: `${track.name} SACK`, width: (2 * pixel) / unit, yaxis: axis, legendgroup: "SACK", showlegend: first, legend: "legend",
      opacity: 0.55, marker: { color: data.colours.sack, line: { width: 0 } }, hovertemplate: "%{hovertext}<extra></extra>", meta: { panel: "sequence", track: track.name, line: "SACK" },
    };
  }

  function lostTrace(track, axis, view, first) {
    const l = track.lost;
    const [from, to] = inView(l.t, view);
    const into = { x: [], y: [], text: [] };
    for (let i = from; i < to; i++) {
      const why = l.why[i] === null ? "" : data.words[l.why[i]];
      into.x.push(l.t[i] / unit);
      into.y.push((l.seq[i] + l.end[i]) / 2);
      into.text.push(`<b>counted as lost</b> at ${moment(l.t[i])}<br>${count(l.seq[i])} – ${count(l.end[i])}<br>${clean(why)}` + (data.losses[why] ? ` — ${data.losses[why]}` : ""));
    }
    return {
      ...into, type: "scatter", mode: "markers", name: "lost", visible: "legendonly", uid: `${track.name} lost`, yaxis: axis, legendgroup: "lost", showlegend: first, legend: "legend",
      marker: { symbol: "x-thin", size: 6, line: { width: 1.3, color: css("--ink") } }, hovertemplate: "%{text}<extra></extra>", meta: { panel: "sequence", track: track.name, line: "lost" },
    };
  }

  // --- lines, with the least and the greatest value of every pixel column ---

  function thinned(times, values, view, pixel) {
    const [from, to] = inView(times, view);
    const keep = [];
    if (to - from <= MANY) for (let i = from; i < to; i++) keep.push(i);
    else {
      for (let i = from; i < to; ) {
        const column = Math.floor(times[i] / pixel);
        const [start] = [i];
        let low = i;
        let high = i;
        for (; i < to && Math.floor(times[i] / pixel) === column; i++) {
          if (values[i] !== null && (values[low] === null || values[i] < values[low])) low = i;
          if (values[i] !== null && (values[high] === null || values[i] > values[high])) high = i;
        }
        keep.push(...[...new Set([start, low, high, i - 1])].sort((a, b) => a - b));
      }
    }
    return [keep, to - from];
  }

  function line(track, times, values, options) {
    const [keep, all] = thinned(times, values, options.view, options.pixel);
    const scale = options.scale || 1;
    return [
      {
        type: "scatter", mode: "lines", connectgaps: false, name: options.name, uid: `${options.panel} ${track.name} ${options.name}`, yaxis: options.axis,
        x: keep.map(i => times[i] / unit), y: keep.map(i => (values[i] === null ? null : values[i] / scale)),
        line: { color: options.colour, width: options.width || 1.5, dash: options.dash || "solid", shape: "hv" }, showlegend: options.showlegend, legend: options.legend,
        legendgroup: options.group, text: keep.map(i => moment(times[i])),
        hovertemplate: `%{text}<br>${clean(options.name)} <b>%{y:,.6~g}</b>${options.suffix || ""}<extra></extra>`, meta: { panel: options.panel, track: track.name, line: options.name },
      },
      all,
      keep.length,
    ];
  }

  // a counter: a mark wherever it has grown
  function stepTrace(track, one, options) {
    const times = track.series.t;
    const values = track.series[one.column];
    const level = track.series[one.at] || [];
    const into = { x: [], y: [], text: [] };
    const [from, to] = inView(times, options.view);
    for (let i = Math.max(from, 1); i < to; i++) {
      if (values[i] <= values[i - 1]) continue;
      into.x.push(times[i] / unit);
      into.y.push(level[i] || 0);
      into.text.push(`${moment(times[i])}<br><b>${count(values[i] - values[i - 1])} ${one.name}</b>, ${count(values[i])} so far`);
    }
    return {
      ...into, type: "scatter", mode: "markers", name: options.name, uid: `${options.panel} ${track.name} ${one.name}`, yaxis: options.axis, legend: options.legend,
      marker: { symbol: "x-thin", size: 7, line: { width: 1.5, color: options.colour } }, hovertemplate: "%{text}<extra></extra>", meta: { panel: options.panel, track: track.name, line: one.name },
    };
  }

  // --- the gate band ---

  function gateTraces(tracks, axis, view, pixel) {
    const names = [...new Set(tracks.flatMap(track => track.gates.gate))].map(index => data.words[index]);
    const order = Object.keys(data.colours.gates).filter(name => names.includes(name)).concat(names.filter(name => !(name in data.colours.gates)));
    const classes = new Map(order.map(name => [name, { y: [], x: [], base: [], hovertext: [] }]));
    let all = 0;
    let drawn = 0;
    tracks.forEach((track, row) => {
      const g = track.gates;
      const from = bound(g.end, view[0]);
      const to = bound(g.t, view[1]);
      all += to - from;
      const put = (name, t, end, number) => {
        const into = classes.get(name);
        into.y.push(row);
        into.base.push(t / unit);
        into.x.push((end - t) / unit);
        into.hovertext.push(
          `<b>${clean(name)}</b> ${time(end - t)} from ${moment(t)}<br>` + (number > 1 ? `the longest of ${count(number)} gates within; zoom in to see each` : data.gates[name] || ""),
        );
        drawn++;
      };
      if (to - from <= MANY) for (let i = from; i < to; i++) put(data.words[g.gate[i]], g.t[i], g.end[i], 1);
      else {
        for (let i = from; i < to; ) {
          const start = g.t[i];
          const sums = new Map();
          let end = start;
          const began = i;
          for (; i < to && (i === began || g.end[i] - start < 2 * pixel); i++) {
            sums.set(g.gate[i], (sums.get(g.gate[i]) || 0) + g.end[i] - g.t[i]);
            end = g.end[i];
          }
          const [most] = [...sums].reduce((a, b) => (b[1] > a[1] ? b : a));
          put(data.words[most], start, end, i - began);
        }
      }
    });
    const traces = [...classes].map(([name, into]) => ({
      ...into, type: "bar", orientation: "h", name, uid: `gate ${name}`, width: 0.82, yaxis: axis, legend: "legend2", marker: { color: data.colours.gates[name] || "#888", line: { width: 0 } },
      hovertemplate: "%{hovertext}<extra></extra>", meta: { panel: "gates", gate: name },
    }));
    return [traces, all, drawn];
  }

  function markTraces(tracks, axis) {
    const kinds = [...new Set(tracks.flatMap(track => track.marks.kind))].map(index => data.words[index]);
    return kinds.map(kind => {
      const into = { x: [], y: [], hovertext: [] };
      tracks.forEach((track, row) => {
        track.marks.t.forEach((t, i) => {
          if (data.words[track.marks.kind[i]] !== kind) return;
          into.x.push(t / unit);
          into.y.push(row);
          into.hovertext.push(`${moment(t)}<br><b>${clean(data.words[track.marks.text[i]])}</b>`);
        });
      });
      return {
        ...into, type: "scatter", mode: "markers", name: data.marks[kind] || kind, uid: `mark ${kind}`, yaxis: axis, legend: "legend3",
        marker: { symbol: data.symbols[kind] || "circle", size: 9, color: data.colours.marks[kind] || css("--ink"), line: { width: 1, color: css("--bg") } },
        hovertemplate: "%{hovertext}<extra></extra>", meta: { panel: "events", kind },
      };
    });
  }

  // --- the figure ---

  function draw() {
    const tracks = data.tracks.filter(track => shown.variants.has(track.variant) && shown.flows.has(track.flow));
    // names as short as what is shown allows
    const one = key => new Set(tracks.map(track => track[key])).size === 1;
    for (const track of tracks) {
      const name = tracks.length === 1 ? track.flow : one("flow") ? track.variant : one("variant") ? track.flow : track.name;
      track.short = name.length > 28 ? "…" + name.slice(-27) : name;
    }
    for (const panel of data.queues) for (const track of panel.tracks) track.short = track.variant;
    MARGIN.l = Math.max(84, 18 + 6.6 * Math.max(...tracks.map(track => track.short.length)));

    const ink = css("--ink");
    const soft = css("--soft");
    const whole = (spanShown = stretch(tracks));
    const view = range ? range.map(value => value * unit) : whole;
    const span = view[1] - view[0] || 1;
    const pad = range ? 0 : span * 0.01;
    const pixel = (span + 2 * pad) / Math.max(200, (printing ? 1000 : chart.clientWidth) - MARGIN.l - MARGIN.r); // ns
    const xrange = range || [(whole[0] - pad) / unit, (whole[1] + pad) / unit];
    const lookAt = [xrange[0] * unit, xrange[1] * unit];

    // panels from top to bottom: [name, height in pixels, drawing function]
    const panels = [];
    const sequences = tracks.filter(track => track.sends);
    const height = sequences.length > 2 ? 260 : sequences.length === 2 ? 330 : 430;
    for (const track of sequences) panels.push({ name: "sequence", title: `Time–sequence${data.tracks.length > 1 ? ": " + track.name : ""}`, height, track, label: "bytes" });
    // of a connection that sends nothing there is nothing that held it back
    const gated = tracks.filter(track => track.gates.t.length && (track.sends || !sequences.length));
    if (gated.length) panels.push({ name: "gates", title: "What held the sender back", height: 10 + 22 * gated.length, tracks: gated, legend: "legend2" });
    const marked = tracks.filter(track => track.marks.t.length);
    if (marked.length) panels.push({ name: "events", title: "Events", height: 10 + 22 * marked.length, tracks: marked, legend: "legend3" });
    for (const panel of data.panels) {
      const usable = tracks.filter(track => panel.lines.some(one => track.series[one.column]));
      if (usable.length) panels.push({ ...panel, tracks: usable });
    }
    // the queues of the variants in view
    const variants = new Set(tracks.map(track => track.variant));
    for (const panel of data.queues) {
      const usable = panel.tracks.filter(track => variants.has(track.variant));
      if (usable.length) panels.push({ ...panel, tracks: usable });
    }
    const gap = printing ? 25 : 44;
    if (printing) {
      // one landscape page
      const thin = panel => panel.name === "gates" || panel.name === "events";
      for (const panel of panels.filter(thin)) panel.height = 13 * panel.tracks.length;
      const fixed = panels.filter(thin).reduce((total, panel) => total + panel.height, MARGIN.t + MARGIN.b + gap * (panels.length - 1));
      const rest = panels.filter(panel => !thin(panel)).reduce((total, panel) => total + panel.height, 0);
      for (const panel of panels) if (!thin(panel)) panel.height *= Math.min(1, (655 - fixed) / rest);
    }
    const inner = panels.reduce((total, panel) => total + panel.height, 0) + gap * Math.max(0, panels.length - 1);
    const layout = {
      height: inner + MARGIN.t + MARGIN.b, margin: MARGIN, barmode: "overlay", hovermode: "closest", hoverdistance: 12, uirevision: "kept", autosize: !printing,
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: css("--panel"), font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: ink }, dragmode: "zoom",
      hoverlabel: { bgcolor: css("--bg"), bordercolor: css("--line"), font: { color: ink, size: 13, family: getComputedStyle(document.body).fontFamily }, align: "left", namelength: 0 },
      annotations: [], modebar: { bgcolor: "rgba(0,0,0,0)", color: soft, activecolor: css("--accent"), orientation: "v" },
      xaxis: {
        range: xrange, autorange: false, title: { text: `time (${data.unit})`, standoff: 8 }, gridcolor: css("--grid"), zeroline: false, color: soft, anchor: "free", position: 0,
        showspikes: !printing, spikemode: "across", spikesnap: "cursor", spikethickness: 1, spikedash: "solid", spikecolor: soft, linecolor: css("--line"), exponentformat: "none", separatethousands: true,
      },
    };
    if (printing) layout.width = 1000;
    const traces = [];
    const named = new Set(); // reasons that the legend has already
    let segments = 0;
    let bars = 0;
    let points = 0;
    let kept = 0;
    let top = 0; // pixels from the top of the plot area
    panels.forEach((panel, index) => {
      const number = index ? index + 1 : "";
      const axis = `y${number}`;
      const y = pixels => 1 - pixels / inner;
      const setting = {
        domain: [Math.max(0, y(top + panel.height)), y(top)], anchor: "x", gridcolor: css("--grid"), zeroline: false, color: soft, linecolor: css("--line"),
        title: { text: panel.label || "", standoff: 6, font: { size: 11 } }, exponentformat: "SI", fixedrange: panel.name === "gates" || panel.name === "events", nticks: panel.height < 120 ? 4 : 8, automargin: false,
      };
      layout[`yaxis${number}`] = setting;
      layout.annotations.push({ text: `<b>${clean(panel.title)}</b>`, xref: "paper", yref: "paper", x: 0, y: y(top), xanchor: "left", yanchor: "bottom", yshift: 3, showarrow: false, font: { size: 13, color: ink } });
      const legend = panel.legend || (panel.name === "sequence" ? "legend" : `legend${10 + index}`);
      if (panel.name !== "sequence" || panel.track === sequences[0]) {
        layout[legend] = { x: 1.008, xanchor: "left", y: y(top), yanchor: "top", bgcolor: "rgba(0,0,0,0)", font: { size: 11 }, tracegroupgap: 0, itemsizing: "constant", itemwidth: 30, orientation: "v" };
        // a band is lower than its legend: spread the names beside it
        if (panel.name === "gates" || panel.name === "events") Object.assign(layout[legend], { orientation: "h", x: 1, xanchor: "right", y: y(top), yanchor: "bottom", entrywidth: 0 });
      }
      if (panel.name === "sequence") {
        const track = panel.track;
        const first = track === sequences[0];
        const [low, high] = sequenceRange(track, lookAt);
        const chosen = yranges[axis];
        setting.range = chosen || [low, high];
        const tall = (setting.range[1] - setting.range[0]) / panel.height;
        const [made, all, drawn] = segmentTraces(track, axis, lookAt, pixel, tall, named);
        segments += all;
        bars += drawn;
        const common = { view: lookAt, pixel, axis, legend: "legend", showlegend: first, panel: "sequence", suffix: " bytes" };
        const [edge, edgeAll, edgeKept] = line(track, track.edge.t, track.edge.seq, { ...common, name: "window edge", group: "edge", colour: data.colours.edge, width: 1.2, dash: "4px,2px" });
        const [acks, ackAll, ackKept] = line(track, track.acks.t, track.acks.una, { ...common, name: "ACK", group: "ack", colour: ink, width: 1.1 });
        points += edgeAll + ackAll;
        kept += edgeKept + ackKept;
        if (track.edge.t.length) traces.push(edge);
        if (track.acks.t.length) traces.push(acks);
        if (track.sacks.t.length) traces.push(sackTrace(track, axis, lookAt, pixel, tall, first));
        traces.push(...made);
        if (track.lost.t.length) traces.push(lostTrace(track, axis, lookAt, !named.has("lost")));
        if (track.lost.t.length) named.add("lost");
      } else if (panel.name === "gates" || panel.name === "events") {
        Object.assign(setting, { range: [panel.tracks.length - 0.4, -0.6], tickvals: [...panel.tracks.keys()], ticktext: panel.tracks.map(track => clean(track.short)), showgrid: false, tickfont: { size: 11 } });
        if (panel.name === "gates") {
          const [made, all, drawn] = gateTraces(panel.tracks, axis, lookAt, pixel);
          points += all;
          kept += drawn;
          traces.push(...made);
        } else traces.push(...markTraces(panel.tracks, axis));
      } else {
        let most = 0;
        const several = panel.tracks.length > 1;
        for (const track of panel.tracks) {
          panel.lines.forEach((one, place) => {
            const values = track.series[one.column];
            if (!values) return;
            const name = several ? (place ? `${one.name}, ${track.short}` : track.short) : one.name;
            const colour = several ? track.colour : one.colour;
            if (one.steps) {
              traces.push(stepTrace(track, one, { view: lookAt, axis, legend, panel: panel.name, name, colour: one.colour }));
              return;
            }
            const [made, all, keptHere] = line(track, track.series.t, values, {
              view: lookAt, pixel, axis, panel: panel.name, legend, showlegend: true, scale: one.scale, suffix: one.suffix, name, colour,
              dash: several ? ["solid", "dot", "dash"][place] : one.dash, width: place ? 1.2 : 1.7, group: `${panel.name} ${track.name} ${one.name}`,
            });
            // of several flows the first line alone, the others on a click while the legend has room for them
            if (several && place && (printing || panel.tracks.length > 3)) return;
            if (several && place) made.visible = "legendonly";
            else for (const value of made.y) if (value !== null && value > most) most = value;
            points += all;
            kept += keptHere;
            traces.push(made);
          });
        }
        setting.range = yranges[axis] || [0, most * 1.06 || 1];
      }
      top += panel.height + gap;
    });
    const note = document.getElementById("drawn");
    const say = [];
    if (segments) say.push(bars < segments ? `${count(segments)} super-segments in view, drawn as ${count(bars)} bars: those of one reason that share a pixel are merged` : `${count(segments)} super-segments in view, each drawn`);
    if (kept < points) say.push(`lines and bands: ${count(kept)} of ${count(points)} points, the least and the greatest of each pixel column`);
    note.textContent = say.join("; ") + (say.length ? "." : "");
    const config = { displaylogo: false, responsive: false, displayModeBar: !printing, modeBarButtons: [["zoom2d", "pan2d"], ["zoomIn2d", "zoomOut2d"], ["toImage"]], doubleClick: false, toImageButtonOptions: { format: "svg", filename: data.title } };
    return Plotly.react(chart, traces, layout, config);
  }

  function stretch(tracks) {
    const times = tracks.flatMap(track => [track.xmit.t, track.acks.t, track.marks.t, track.series.t]).filter(column => column.length);
    if (!times.length) return [0, data.span];
    const low = Math.min(...times.map(column => column[0]));
    const high = Math.max(...times.map(column => column[column.length - 1]));
    return high > low ? [low, high] : [low, low + 1];
  }

  // lowest and highest sequence number worth showing; a far window edge must not squash the rest
  function sequenceRange(track, view) {
    const x = track.xmit;
    const [from, to] = inView(x.t, view);
    let low = Infinity;
    let high = -Infinity;
    for (let i = from; i < to; i++) {
      low = Math.min(low, x.seq[i]);
      high = Math.max(high, x.seq[i] + x.len[i]);
    }
    const [a, b] = inView(track.acks.t, view);
    for (let i = a; i < b; i++) {
      low = Math.min(low, track.acks.una[i]);
      high = Math.max(high, track.acks.una[i]);
    }
    if (low > high) return [0, 1];
    let edge = high;
    const [c, d] = inView(track.edge.t, view);
    for (let i = c; i < d; i++) edge = Math.max(edge, track.edge.seq[i]);
    if (edge - low <= 1.5 * (high - low)) high = edge;
    const pad = (high - low) * 0.04 || 1000;
    return [low - pad, high + pad];
  }

  // --- what the reader does ---

  function setView(low, high) {
    const least = 1e3 / unit; // a microsecond
    if (low === null || high - low >= ((spanShown[1] - spanShown[0]) / unit) * 1.02) range = null;
    else range = high - low < least ? [(low + high - least) / 2, (low + high + least) / 2] : [low, high];
    return draw();
  }

  function relayout(event) {
    let changed = false;
    const given = new Set();
    for (const [key, value] of Object.entries(event)) {
      const match = /^([xy])axis(\d*)\.(range\[0\]|range|autorange)$/.exec(key);
      if (!match) continue;
      const [, letter, number, what] = match;
      changed = true;
      if (what === "autorange") {
        if (letter === "x") range = null;
        else delete yranges[`y${number}`];
        continue;
      }
      const pair = what === "range" ? value : [value, event[`${letter}axis${number}.range[1]`]];
      if (letter === "x") setRange(pair);
      else {
        yranges[`y${number}`] = pair;
        given.add(`y${number}`);
      }
    }
    // another stretch of time wants other heights, unless the reader drew a box
    if (Object.keys(event).some(key => key.startsWith("xaxis"))) for (const axis of Object.keys(yranges)) if (!given.has(axis)) delete yranges[axis];
    if (changed) draw();
  }
  const setRange = pair => (range = pair.map(Number));

  function everything() {
    for (const axis of Object.keys(yranges)) delete yranges[axis];
    setView(null);
  }

  function wheel(event) {
    if (!event.ctrlKey && !event.metaKey) return; // plain scrolling moves the page
    event.preventDefault();
    const axis = chart._fullLayout.xaxis;
    const at = axis.p2l(event.clientX - chart.getBoundingClientRect().left - MARGIN.l);
    const [low, high] = axis.range;
    const factor = Math.exp(Math.sign(event.deltaY) * 0.3);
    for (const name of Object.keys(yranges)) delete yranges[name];
    setView(at - (at - low) * factor, at + (high - at) * factor);
  }

  function keys(event) {
    if (event.target.closest("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
    const [low, high] = chart._fullLayout.xaxis.range;
    const step = (high - low) * 0.25;
    const moves = { ArrowLeft: [-step, -step], ArrowRight: [step, step], "+": [step, -step], "=": [step, -step], "-": [-step, step] };
    if (event.key === "0") everything();
    else if (event.key in moves) setView(low + moves[event.key][0], high + moves[event.key][1]);
    else return;
    event.preventDefault();
  }

  // one row of names to switch on and off: variants, or flows
  function chips(kind, label, all) {
    const bar = document.getElementById(kind);
    const names = data[kind];
    if (names.length < 2) return;
    bar.replaceChildren(Object.assign(document.createElement("b"), { textContent: label }));
    for (const name of all ? names : names.filter((one, index) => index < CHIPS || shown[kind].has(one))) {
      const button = document.createElement("button");
      const track = data.tracks.find(one => (kind === "variants" ? one.variant === name && shown.flows.has(one.flow) : one.flow === name && shown.variants.has(one.variant)));
      if (track && (kind === "variants" || data.variants.length === 1)) {
        const dot = Object.assign(document.createElement("span"), { className: "dot" });
        dot.style.setProperty("--dot", track.colour);
        button.append(dot);
      }
      button.append(name);
      button.setAttribute("aria-pressed", String(shown[kind].has(name)));
      button.addEventListener("click", () => {
        if (!shown[kind].delete(name)) shown[kind].add(name);
        if (!shown[kind].size) shown[kind].add(name);
        for (const axis of Object.keys(yranges)) delete yranges[axis];
        button.setAttribute("aria-pressed", String(shown[kind].has(name)));
        draw();
      });
      bar.append(button);
    }
    const left = names.length - (bar.childElementCount - 1);
    if (left > 0) {
      const more = Object.assign(document.createElement("button"), { textContent: `${left} more …` });
      more.addEventListener("click", () => chips(kind, label, true));
      bar.append(more);
    }
  }

  function theme(name) {
    root.dataset.theme = name;
    document.getElementById("theme").textContent = name === "dark" ? "light" : "dark";
  }

  const system = matchMedia("(prefers-color-scheme: dark)");
  theme(system.matches ? "dark" : "light");
  system.addEventListener("change", () => (theme(system.matches ? "dark" : "light"), draw()));
  document.getElementById("theme").addEventListener("click", () => (theme(root.dataset.theme === "dark" ? "light" : "dark"), draw()));
  document.getElementById("reset").addEventListener("click", everything);
  chips("variants", "variants", false);
  chips("flows", "flows", false);
  draw().then(() => {
    chart.on("plotly_relayout", relayout);
    chart.on("plotly_doubleclick", everything);
    chart.addEventListener("wheel", wheel, { passive: false });
    document.addEventListener("keydown", keys);
    let waiting = 0;
    let width = chart.clientWidth;
    addEventListener("resize", () => {
      cancelAnimationFrame(waiting);
      if (chart.clientWidth !== width && !printing) waiting = requestAnimationFrame(() => ((width = chart.clientWidth), draw()));
    });
    let before = "light";
    addEventListener("beforeprint", () => {
      before = root.dataset.theme;
      printing = true;
      document.querySelectorAll("details").forEach(one => (one.open = true));
      theme("light");
      draw();
    });
    addEventListener("afterprint", () => {
      printing = false;
      theme(before);
      draw();
    });
    root.dataset.ready = "yes";
  });
})();
