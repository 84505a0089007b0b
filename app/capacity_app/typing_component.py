"""Deployments that type side by side: text that appears at their TTFT and TPOT, in the browser and in real time.

Its data: `text`, a sample, and `sides`, each with `name`, `summary`, `ttft_s`, `tpot_s`, `tokens` and `end_s`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

BUTTON_CSS = """
button { font: inherit; font-size: .875rem; color: var(--st-text-color); background: var(--st-background-color);
  border: 1px solid var(--st-border-color); border-radius: var(--st-button-radius, .5rem); min-height: 2.5rem;
  padding: .25rem .75rem; cursor: pointer; }
button:hover, button:focus-visible { border-color: var(--st-primary-color); color: var(--st-primary-color); }
"""

TYPED = (
    "Every answer begins with a wait: the prompt is read whole before the first word appears, and while it is read "
    "nothing moves. Then the words come one by one, each as long after the one before as a decode step takes, because "
    "a model writes the next token only when it knows the last. People read four or five words a second. What is much "
    "faster than that feels instant, what is slower feels like somebody thinking aloud, and what stops and starts "
    "feels broken even where the average is the same. "
)
TYPING_HTML = """
<div class="bar"><button type="button" class="go">Start</button>
<span class="clock" aria-hidden="true">0.0 s</span></div>
<div class="sides"></div>
"""
TYPING_CSS = (
    BUTTON_CSS
    + """
:host { color: var(--st-text-color); font-family: var(--st-font); }
.bar { display: flex; gap: .8rem; align-items: center; margin-bottom: .6rem; }
.clock { font-variant-numeric: tabular-nums; }
.sides { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 18rem), 1fr)); gap: .8rem; }
.side { border: 1px solid var(--st-border-color); border-radius: .5rem; padding: .7rem .9rem; min-width: 0; }
.side h4 { margin: 0 0 .2rem; font-size: .95rem; overflow-wrap: anywhere; }
.side .state { margin: 0 0 .5rem; font-size: .85rem; font-variant-numeric: tabular-nums; }
.side .text { height: 11rem; overflow-y: auto; line-height: 1.5; overflow-wrap: anywhere; }
"""
)
TYPING_JS = """
export default function ({ data, parentElement }) {
  const root = parentElement.querySelector(".sides"), clock = parentElement.querySelector(".clock");
  const button = parentElement.querySelector(".go");
  const words = data.text.match(/\\S+\\s*/g);
  const pieces = words.flatMap((word) => (word.length > 6 ? [word.slice(0, 4), word.slice(4)] : [word]));
  root.replaceChildren();
  const sides = data.sides.map((side) => {
    const box = document.createElement("section"), name = document.createElement("h4");
    const state = document.createElement("p"), text = document.createElement("div");
    box.className = "side"; state.className = "state"; text.className = "text";
    text.tabIndex = 0; text.setAttribute("role", "region");
    text.setAttribute("aria-label", "What " + side.name + " types");
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
      side.state.textContent = tokens === 0 ? "reads the prompt" : tokens < side.tokens
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
"""


def draw_typing(sides: Sequence[Mapping[str, Any]]) -> None:
    """Draw it. What the component shows comes to it as data, and is shown as text and never as markup."""
    component = st.components.v2.component("capacity.typing", html=TYPING_HTML, css=TYPING_CSS, js=TYPING_JS)
    component(key="typing", data={"sides": sides, "text": TYPED})
