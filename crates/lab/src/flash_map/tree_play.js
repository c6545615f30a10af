const $ = id => document.getElementById(id);
const canvas = $("pages"), scale = window.devicePixelRatio || 1;
const [width, height] = [data.columns * data.block, data.rows * data.block];
canvas.style.width = width + "px";
canvas.width = width * scale;
canvas.height = height * scale;
const pen = canvas.getContext("2d");
pen.setTransform(scale, 0, 0, scale, 0, 0);
const all = data.rows * data.columns * data.pages;
let frame = 0, playing = true, shown = -1;
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
      kinds[changed[at]] = changed[at + 1];
      born[changed[at]] = shown;
    }
  }
}

function draw() {
  go(frame);
  const last = Math.max(1, data.frames.length - 1), counts = data.names.map(() => 0);
  pen.globalAlpha = 1;
  pen.clearRect(0, 0, width, height);
  for (let page = 0; page < all; page++) {
    const block = Math.floor(page / data.pages), index = page % data.pages, kind = kinds[page];
    counts[kind]++;
    pen.globalAlpha = kind ? 1 - 0.75 * (frame - born[page]) / last : 1;
    pen.fillStyle = `rgb(${data.colours[kind]})`;
    pen.fillRect(Math.floor(block / data.rows) * data.block + index % data.side * data.dot,
      block % data.rows * data.block + Math.floor(index / data.side) * data.dot, data.dot, data.dot);
  }
  const now = data.frames[frame], first = data.frames[0];
  $("told").textContent = `${now.operations} updates in ${now.seconds.toFixed(3)} s of virtual time: ` +
    `${now.programs - first.programs} pages programmed, ${now.erases - first.erases} blocks erased; pages: ` +
    data.names.map((name, kind) => `${counts[kind]} ${name}`).join(", ");
  $("frame").value = frame;
}

function tick() {
  if (playing) {
    frame = (frame + 1) % data.frames.length;
    draw();
  }
  setTimeout(tick, 1000 / $("speed").value * (playing && frame === data.frames.length - 1 ? 10 : 1));
}

function set_playing(on) {
  playing = on;
  $("toggle").textContent = on ? "Pause" : "Play";
}
$("toggle").onclick = () => set_playing(!playing);
$("frame").oninput = () => { set_playing(false); frame = +$("frame").value; draw(); };
draw();
tick();
