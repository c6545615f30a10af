const CELL = 14, STEP = 16;
const $ = id => document.getElementById(id);
const [pages, wear, line] = [$("pages"), $("wear"), $("line")];
let frame = 0, playing = true;

function size(canvas, width, height) {
  const scale = window.devicePixelRatio || 1;
  canvas.style.width = width + "px";
  canvas.width = width * scale;
  canvas.height = height * scale;
  canvas.getContext("2d").setTransform(scale, 0, 0, scale, 0, 0);
}
for (const canvas of [pages, wear]) size(canvas, data.columns * STEP, data.rows * STEP);
size(line, 1100, 150);

const place = block => [Math.floor(block / data.rows) * STEP, (block % data.rows) * STEP];
const wearColour = share => {
  const mix = (from, to) => Math.round(from + share * (to - from));
  return `rgb(${mix(253, 127)},${mix(240, 20)},${mix(225, 20)})`;
};
const size_text = bytes => bytes >= 2 ** 30 ? (bytes / 2 ** 30).toFixed(2) + " GiB" : (bytes / 2 ** 20).toFixed(1) + " MiB";

function draw() {
  const now = data.frames[frame];
  const [left, right] = [pages.getContext("2d"), wear.getContext("2d")];
  let live = 0, used = 0;
  for (let block = 0; block < now.live.length; block++) {
    const [x, y] = place(block);
    const a = now.live[block] / data.pages * CELL, b = now.used[block] / data.pages * CELL;
    live += now.live[block];
    used += now.used[block];
    left.fillStyle = "#e2e6eb";
    left.fillRect(x, y, CELL, CELL);
    left.fillStyle = "#e69f00";
    left.fillRect(x, y + CELL - b, CELL, b);
    left.fillStyle = "#0072b2";
    left.fillRect(x, y + CELL - a, CELL, a);
    right.fillStyle = wearColour(now.erases[block] / data.erases_max);
    right.fillRect(x, y, CELL, CELL);
  }
  const all = data.rows * data.columns * data.pages, share = count => (100 * count / all).toFixed(1) + " %";
  $("told").textContent = `${size_text(now.written)} written by the host in ${now.seconds.toFixed(2)} s of virtual time; ` +
    `live ${share(live)}, dead ${share(used - live)}, free ${share(all - used)}; ` +
    `write amplification now ${now.amplification.toFixed(2)}`;
  $("frame").value = frame;
  drawLine();
}

function drawLine() {
  const pen = line.getContext("2d"), [width, height, margin] = [1100, 150, 36];
  const last = data.frames[data.frames.length - 1].written || 1;
  const most = Math.max(2, ...data.frames.map(moment => moment.amplification)) * 1.1;
  const x = moment => margin + (width - margin - 8) * moment.written / last;
  const y = value => height - 22 - (height - 32) * value / most;
  pen.clearRect(0, 0, width, height);
  pen.font = "12px sans-serif";
  pen.fillStyle = "#626b75";
  pen.strokeStyle = "#e1e4e8";
  for (let value = 1; value < most; value += Math.ceil(most / 5)) {
    pen.beginPath();
    pen.moveTo(margin, y(value));
    pen.lineTo(width - 8, y(value));
    pen.stroke();
    pen.fillText(value, 12, y(value) + 4);
  }
  pen.fillText("0", margin, height - 6);
  pen.textAlign = "right";
  pen.fillText(size_text(last), width - 8, height - 6);
  pen.textAlign = "left";
  pen.strokeStyle = "#0072b2";
  pen.lineWidth = 2;
  pen.beginPath();
  data.frames.slice(1).forEach((moment, index) => pen[index ? "lineTo" : "moveTo"](x(moment), y(moment.amplification)));
  pen.stroke();
  pen.lineWidth = 1;
  pen.strokeStyle = "#1e2328";
  pen.beginPath();
  pen.moveTo(x(data.frames[frame]), 6);
  pen.lineTo(x(data.frames[frame]), height - 22);
  pen.stroke();
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
for (const canvas of [pages, wear]) {
  canvas.onmousemove = event => {
    const scale = data.columns * STEP / canvas.clientWidth;
    const column = Math.floor(event.offsetX * scale / STEP), row = Math.floor(event.offsetY * scale / STEP);
    const block = column * data.rows + row, now = data.frames[frame];
    if (column < 0 || column >= data.columns || row < 0 || row >= data.rows) return;
    $("block").textContent = `Block ${block}, channel ${row % data.channels}, die ${Math.floor(row / data.channels)}: ` +
      `${now.live[block]} live, ${now.used[block] - now.live[block]} dead, ${data.pages - now.used[block]} free; ` +
      `erased ${now.erases[block]} times`;
  };
}
draw();
tick();
