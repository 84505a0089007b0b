"""The dashboard: the answers of `capacity` in a browser. It computes nothing itself: all numbers come from the
library.

How to add a page
-----------------
1. Write the script `app_pages/NAME.py` and add an entry to `pages.toml`. The router draws title, menu, sidebar and
   link, and shows errors. Sidebar inputs that are not in `reads` are disabled. The script draws its answer:

       inputs = current_inputs()                       # model, pool, lengths, rate, price, units
       asked = draw_fields("beam_batch")               # rows of `fields.toml`
       options = {**inputs.pool, **inputs.lengths, **asked}
       found = ask_in_background("beam_search", inputs, options, doing="Computing")    # `button="..."` if it is slow
       show_answer("beam_search", inputs, found, beam_search_facts, beam_search_view)    # with A | B comparison

   The last two arguments are from `capacity.report.views`: the key metrics, and the whole view. Add the help of each
   metric to `meanings.toml`.

2. `questions.ask_in_background` calls a library function, and draws its progress, a cancel button, code snippets and
   downloads. Run other work of more than 50 ms with `parts.run_in_background(place, Task(...), doing="simulating")`. A
   task names a function (`capacity:simulate`) and its keyword arguments, which must be picklable. It runs in a worker
   process, and its result is cached by function and arguments. `answer.value` is None until the task is finished;
   `answer.stale` means that the value belongs to earlier inputs. `button="Run"` waits for a click. A task with
   `reports=True` shows its progress.

3. A row of `fields.toml` is a parameter of a library function with a label and a key. `widgets.draw_fields` draws it
   with the parameter's type, choices, limits and help, and returns values that differ from the library's defaults.
   `widgets.page_field` overrides what depends on other inputs. Draw other inputs with `page_switch`, `number`,
   `choice`, `segments`, or any widget with `**bind_to_url(key, default)`. The key appears in the URL: keep it short,
   unique over all pages, and prefixed by the page's name. Never set the session state of a widget that is bound to
   the URL, because the URL would not change. Use a link (`st.switch_page` with `query_params`).

4. Raise `CapacityError`, and do not catch it: the router shows it in one line (`error_display.show_errors`). Never show
   the text of another exception. Escape external text (file names, model names, warnings) with
   `error_display.escape_markdown`. Do not call `st.stop()`, because the link is drawn after the page.

5. Put charts into `capacity/report/figures/`: a function that takes an answer and `Units` and returns a `Chart`. Use
   colours from `PALETTE` with a second distinction (marker, pattern, dash, label), an `alt` sentence with the main
   number, and `rows` with all numbers.

6. Add the page to the lists in `tests/app/test_pages.py` and `tests/app/test_browser.py`, and run
   `python tests/screenshots.py`.
"""
