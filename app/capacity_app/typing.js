export default function ({ data, parentElement }) {
  const root = parentElement.querySelector(".sides"), clock = parentElement.querySelector(".clock");
  const button = parentElement.querySelector(".go");
  const words = data.text.match(/\S+\s*/g);
  const pieces = words.flatMap((word) => (word.length > 6 ? [word.slice(0, 4), word.slice(4)] : [word]));
  root.replaceChildren();
  const sides = data.sides.map((side) => {
    const box = document.createElement("section"), name = document.createElement("h4");
    const state = document.createElement("p"), text = document.createElement("div");
    box.className = "side"; state.className = "state"; text.className = "text";
    text.tabIndex = 0; text.setAttribute("role", "region");
    text.setAttribute("aria-label", "Text typed by " + side.name);
    name.textContent = side.name; state.textContent = side.summary;
    box.append(name, state, text); root.append(box);
    return { ...side, state, text, shown: -1 };
  });
  let timer = 0, began = 0;
  const stop = () => { cancelAnimationFrame(timer); timer = 0; button.textContent = "Start"; };
  const draw = () => {
    const now = (performance.now() - began) / 1000;
    clock.textContent = now.toFixed(1) + " s";
    let left = false;
    for (const side of sides) {
      const due = now < side.ttft_s ? 0 : 1 + Math.floor((now - side.ttft_s) / side.tpot_s);
      const tokens = Math.min(side.tokens, due);
      left = left || tokens < side.tokens;
      if (tokens === side.shown) continue;
      const more = [];
      for (let n = Math.max(side.shown, 0); n < tokens; n++) more.push(pieces[n % pieces.length]);
      side.shown = tokens;
      if (more.length) side.text.append(more.join(""));
      side.text.scrollTop = side.text.scrollHeight;
      side.state.textContent = tokens === 0 ? "reading the prompt" : tokens < side.tokens
        ? tokens + " of " + side.tokens + " tokens"
        : "done: " + side.tokens + " tokens in " + side.end_s.toFixed(1) + " s";
    }
    if (left) timer = requestAnimationFrame(draw); else stop();
  };
  button.onclick = () => {
    if (timer) { stop(); return; }
    for (const side of sides) { side.text.textContent = ""; side.shown = -1; }
    button.textContent = "Stop"; began = performance.now(); timer = requestAnimationFrame(draw);
  };
  return stop;
}
