"""How a traced run is shown to people. Nothing here prints, colours by itself or opens a file it was not given.

figures.py     what is shown: plain values, the same for every form
moments.py     memory over the run, as plain values
traced.py      both, from a tape and what `predict.memory` says of it
text.py        for the terminal; cards.py, largest.py, compare.py and oom.py what one command says; columns.py
html.py        one self-contained page (chart.py its picture, markup.py its escaping, page/ its style and script)
plan.py        a plan for the terminal; plan_html.py (plan_svg.py its picture) the page, plan_md.py a pull request;
               plan_words.py what all three say, plan_plot.py axes and the terminal's plot
snapshot.py    the pickle that PyTorch's own viewer opens
"""
