"""Draws a run or a comparison of runs: a page with curves, tables, settings and activities, and a picture for a README.

    python -m dkfac.report RUN... [--out FILE]

RUN is a folder of `dkfac train` or `dkfac compare`. All numbers come from its comparison.json; nothing here computes
a statistic. It needs matplotlib and Jinja2, and neither libdkfac.so nor PyTorch.
"""
