"""The dashboard: what `capacity` answers, in a browser. It holds no arithmetic: every number is the library's.

How to add a page
-----------------
1. Write `app_pages/NAME.py`, a plain script, and add an entry for it to `pages.toml`. The router draws the title,
   the menu, the shared sidebar and the link, and catches every error. `reads` says which of the sidebar's inputs the
   answer depends on: the others are there and cannot be changed. The script draws its answer:

       inputs = current_inputs()                       # model, pool, lengths, rate, price, units
       of = partial(show_field, capacity.beam_search)
       asked = draw(of("batch_size", "beam_batch", "Requests at a time", most=4096))
       options = {**inputs.pool, **inputs.lengths, **asked}
       found = answered("beam_search", inputs, options, doing="Widening")    # `button="..."` where it takes long
       show_answer("beam_search", inputs, found, beam_search_facts, beam_search_view)    # and A | B

   The last two are of `capacity.report.views`: the figures of merit, and all that is shown. What a figure means stands
   in `meanings.toml`.

2. `questions.answered` asks a verb: it draws progress, the way to cancel, and the copies (CLI, Python, JSON, CSV).
   What is no verb and takes more than 50 ms goes through `parts.background(place, Task(...), doing="simulating")`. The
   task names a function (`capacity:simulate`) and its keywords; all of them can be pickled. It runs in a process of
   its own and is cached by its keywords. `answer.value` is None until there is one, and `answer.stale` says that it
   belongs to earlier inputs. `button="Run"` waits for a click; a task with `reports=True` passes `progress` on.

3. Widgets: `widgets.show_field` is a field of a verb with the page's key and label; `widgets.draw` draws it with the
   flag's kind, choices, limits and help, and returns what differs from the library's defaults. What is no field is
   drawn by `number`, `choice`, `segments`, `switch`, or any widget with `**bound(key, default)`. The key is the URL's,
   so it is short, unique over all pages, and prefixed by the page's name. Never set the session state of a bound
   widget: the URL would not follow. A link (`st.switch_page` with `query_params`) does.

4. Raise, or let through, `CapacityError`: the boundary makes one line of it. Never show an exception's text yourself;
   text from outside (file names, model names, warnings) goes through `boundary.plain` before it is markdown. No
   `st.stop()`: the link is drawn after the page.

5. Charts live in `capacity/report/figures/`: a function from an answer and `Units` to a `Chart`. Colours from
   `PALETTE`, and always a second difference (marker, pattern, dash, label), an `alt` sentence with the main number,
   `rows` with all.

6. Add the page to the lists in `tests/app/test_pages.py` and `tests/app/test_browser.py`, and run
   `python -m capacity_app.screenshots`.

Where things are: `launch` starts streamlit, `router` is the frame, `state` the sidebar and the URL, `widgets` the
fields, `questions` asks verbs, `parts` are the pieces of a page, `jobs` and `worker` the background, `boundary` the
errors, `pages` the menu and the examples.
"""
