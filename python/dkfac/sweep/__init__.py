"""Searches over the settings of a training by the program dkfac: `python -m dkfac.sweep FILE`.

It starts `dkfac train` for each point of a search and ranks the runs. Optuna proposes points, decides which runs end
early and keeps the trials in a journal. Neither the library libdkfac.so nor PyTorch is needed. docs/training.md
describes the file.
"""
