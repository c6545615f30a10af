const $ = id => document.getElementById(id);
const canvas = $("pages"), scale = window.devicePixelRatio || 1;
const [width, height] = [data.columns * data.block, data.rows * data.block];
canvas.style.width = width + "px";
canvas.width = width * scale;
canvas.height = height * scale;
const pen = canvas.getContext("2d");
pen.setTransform(scale, 0, 0, scale, 0, 0);
const all = data.rows * data.columns * data.pages;
let frame = 0, playing = true, shown = -1, by = "level";
let kinds = new Uint8Array(all), born = new Int32Array(all);

// Frames tell what changed: going back begins at the first again.
function go(to) {
  if (to < shown) {
    kinds = new Uint8Array(all);
    born = new Int32Array(all);
    shown = -1;
  }
  while (shown < to) {
    shown++;
    const changed = data.frames[shown].changed;
    for (let at = 0; at < changed.length; at += 2) {
      const page = changed[at] >> 1;
      kinds[page] = changed[at + 1];
      if (changed[at] & 1) born[page] = shown;
    }
  }
}

const written = page => data.frames[born[page]].operations;
const count = number => number.toLocaleString("en");

// The same rule as in age.rs.
function age(page) {
  const at = written(page), part = data.age_ends.findIndex(end => data.frames[frame].operations - at < end);
  return at && part >= 0 ? part : data.age_ends.length;
}

function draw() {
  go(frame);
  const counts = { kind: data.kinds.map(() => 0), age: data.ages.map(() => 0) };
  pen.clearRect(0, 0, width, height);
  for (let page = 0; page < all; page++) {
    const block = Math.floor(page / data.pages), index = page % data.pages, kind = data.kinds[kinds[page]];
    counts.kind[kinds[page]]++;
    let colour = kind.colour;
    if (kind.kept) {
      const old = age(page);
      counts.age[old]++;
      if (by === "age") colour = data.ages[old];
    }
    pen.fillStyle = `rgb(${colour})`;
    pen.fillRect(Math.floor(block / data.rows) * data.block + index % data.side * data.dot,
      block % data.rows * data.block + Math.floor(index / data.side) * data.dot, data.dot, data.dot);
  }
  for (const cell of document.querySelectorAll(".count")) {
    const { kind, age } = cell.dataset;
    cell.textContent = count(kind ? counts.kind[kind] : counts.age[age]);
  }
  const now = data.frames[frame];
  $("told").textContent = `Step ${frame} of ${data.frames.length - 1}: ${count(now.operations)} updates in ` +
    `${now.seconds.toFixed(3)} s of virtual time; ${count(now.programs)} pages programmed and ${count(now.erases)} blocks erased for them`;
  $("frame").value = frame;
  $("level").hidden = by !== "level";
  $("age").hidden = by !== "age";
}

function tick() {
  if (playing) {
    frame = (frame + 1) % data.frames.length;
    draw();
  }
  setTimeout(tick, 1000 / $("speed").value * (playing && frame === data.frames.length - 1 ? 20 : 1));
}

function set_playing(on) {
  playing = on;
  $("toggle").textContent = on ? "Pause" : "Play";
}

function show(to) {
  set_playing(false);
  frame = Math.max(0, Math.min(data.frames.length - 1, to));
  draw();
}

$("toggle").onclick = () => set_playing(!playing);
$("back").onclick = () => show(frame - 1);
$("on").onclick = () => show(frame + 1);
$("frame").oninput = () => show(+$("frame").value);
for (const choice of document.getElementsByName("by")) {
  choice.onchange = () => { by = choice.value; draw(); };
}
document.onkeydown = event => {
  if (["INPUT", "SELECT"].includes(event.target.tagName)) return;
  if (event.key === "ArrowRight") show(frame + 1);
  if (event.key === "ArrowLeft") show(frame - 1);
};
canvas.onmousemove = event => {
  const zoom = width / canvas.clientWidth, x = event.offsetX * zoom, y = event.offsetY * zoom;
  const [column, row] = [Math.floor(x / data.block), Math.floor(y / data.block)];
  const [side, line] = [Math.floor(x % data.block / data.dot), Math.floor(y % data.block / data.dot)];
  if (column >= data.columns || row >= data.rows || side >= data.side || line >= data.pages / data.side) return;
  const block = column * data.rows + row, index = line * data.side + side, page = block * data.pages + index;
  const kind = data.kinds[kinds[page]], at = written(page);
  const when = kinds[page] === 0 ? "" : at ? `, written ${count(data.frames[frame].operations - at)} updates ago` :
    ", written before the first update";
  $("page").textContent = `${data.dies[row]}, block ${column}, page ${index}: ${kind.name}${when}`;
};
draw();
tick();
