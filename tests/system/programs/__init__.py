"""Training programs of other people at named commits, traced as they are.

manifest.py    the programs: where each comes from, how it is started, what is expected (programs.toml)
stand_ins.py   small data sets, tokenizers and configurations under the names the programs ask for
one.py         one program under `tunecast trace`, within bounds, and whether it went as expected
page.py        the committed result as docs/programs.md
__main__.py    `./dev system programs`
"""
