"""The dashboard: what `capacity` answers, in a browser. It holds no arithmetic: every number is the library's.

How to add a page
-----------------
1. Write `app_pages/NAME.py`, a plain script, and add a `PageEntry` for it to `pages.PAGES`. The router draws the
   title, the menu, the shared sidebar and the link, and catches every error. `reads` says which of the sidebar's
   inputs the answer depends on: the others are there and cannot be changed. The script draws its answer:

       from capacity_app import parts, sides, state
       from capacity_app.router import current_inputs

       inputs = current_inputs()                       # model, pool, lengths, rate, price, units
       rate = state.number("Requests/s", "cost_rate", 4.0, 0.1, 1000.0)   # a widget of this page's own, in the URL
       options = {**inputs.pool, **inputs.lengths, **inputs.spread, "request_rate": rate}
       answer = quick(inputs.model, options)           # a few ms: call the library, through `st.cache_data`
       sides.figures(current, answer, ask=ask, row=figures_of_merit)    # the figures, and A | B
       parts.chart(my_chart(answer, inputs.units))     # a `capacity.report.figures.Chart`: figure, alt, rows
       parts.table("rows", rows, alt="...")
       parts.copies("cost", inputs.model_name, options, answer)    # copy as CLI and Python, JSON and CSV
       parts.notes(answer.warnings)

   `figures_of_merit` makes `parts.Kpi`s of an answer, with `number` where a comparison takes it; `ask` makes the
   `Task` of a `sides.Side`. What a figure means stands in `merits.MEANINGS`.

2. Whatever takes more than 50 ms goes through `parts.background(place, Task(...), doing="simulating")`. The task
   names a library function (`capacity:simulate`) and its keywords; all of them can be pickled. It
   runs in a process of its own, is cached by its keywords, and can be cancelled. `answer.value` is None until there is
   one, and `answer.stale` says that it belongs to earlier inputs. `button="Run"` waits for a click; a task with
   `reports=True` passes `progress` on.

3. Widgets: `state.number`, `state.choice`, `state.segments`, or any widget with `**state.bound(key,
   default)`. The key is the URL's, so it is short, unique over all pages, and prefixed by the page's name. Never set
   the session state of a bound widget: the URL would not follow. A link (`st.switch_page` with `query_params`) does.

4. Raise, or let through, `CapacityError`: the boundary makes one line of it. Never show an exception's text yourself;
   text from outside (file names, model names, warnings) goes through `boundary.plain` before it is markdown. No
   `st.stop()`: the link is drawn after the page.

5. Charts live in `capacity/report/figures/`: a function from an answer and `Units` to a `Chart`. Colours from
   `PALETTE`, and always a second difference (marker, pattern, dash, label), an `alt` sentence with the main number,
   `rows` with all.

6. Add the page to the lists in `tests/app/test_pages.py` and `tests/app/test_browser.py`, and run
   `python -m capacity_app.screenshots`.

Where things are: `launch` starts streamlit, `router` is the frame, `state` the inputs and the URL, `parts` the pieces
of a page, `jobs` and `worker` the background, `boundary` the errors, `presets` the examples.
"""
