"""How a traced run is shown to people. Nothing here prints, colours by itself or opens a file it was not given.

draw/   What every report is drawn with: text, columns, bars, and the plain values they show
lists/  Lists and comparisons: cards, machines, offers, what fits, what differs
page/   One job or traced run as a page of HTML, with its script and style sheets
plan/   A plan for the terminal, as a page and as Markdown
run/    One job or traced run, for the terminal
runs/   Measured runs for people: lists, one run, and predicted against measured as a plot
"""
