"""A plan for the terminal, as a page and as Markdown.

arguments.py  A choice's settings as one types them: the launcher's line, and the arguments of transformers'
              Trainer
markdown.py   A plan as Markdown, for a pull request: the answer, the picks, the cost lines and what it rests on
notes.py      What stands beside a plan's picks, in words: what was not picked, what can be saved, who rents it
              out, its sources
page.py       A plan as one page: no server, no network. What the pointer tells is in the SVG's own titles;
              `page/plan.js` shows them at once, and `page/common.js` sorts tables and copies settings. Without
plot.py       Cost against time: axes for the terminal and the page, and the plot of the terminal
price.py      What a job costs on its own machines, in words. Pure: a `Rent` in, strings out
svg.py        The picture of a plan's page: cost against time with the front, as SVG in percent, so that it fits
              any width
text.py       A plan for the terminal: what to rent, the picks, what stands beside them, the cost, and what it
              rests on
words.py      What is said of a plan, in words and cells: text, page and Markdown say the same. Pure: a `Plan` in,
              strings out
"""
